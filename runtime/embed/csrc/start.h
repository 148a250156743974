/*
 * Starting Python, once, from whatever thread comes first, and telling a thread what went wrong.
 * The rest of the library begins every call with start().
 *
 * Set by the build: SSD_PYTHON (the environment's python), SSD_PLACES (folders that ssd-trt and its
 * packages were imported from, a list in Python), SSD_VERSION, SSD_LIBPYTHON (file name of the
 * library with Python in it).
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LONGEST_LINE 4096

static __thread char last_error[LONGEST_LINE];

/* Cut where a character begins: a line may hold a path of any length. */
static void keep_error(const char *line)
{
    size_t length = strlen(line);
    if (length >= LONGEST_LINE - 1) { /* maybe cut already, so the last character goes as a whole */
        length = LONGEST_LINE - 1;
        while (length > 0 && ((unsigned char)line[length - 1] & 0xC0) == 0x80)
            length--;
        length--;
    }
    memmove(last_error, line, length);
    last_error[length] = '\0';
}

__attribute__((format(printf, 2, 3)))
static ssd_status fail(ssd_status status, const char *format, ...)
{
    char line[LONGEST_LINE];
    va_list values;
    va_start(values, format);
    vsnprintf(line, sizeof line, format, values);
    va_end(values);
    keep_error(line);
    return status;
}

enum { UNTRIED, READY, FAILED };

static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;
static int start_state = UNTRIED;
static pid_t start_process = 0; /* the one that tried it first; its locks mean nothing in a fork */
static char start_error[LONGEST_LINE];
static int is_own_python = 0;
static int has_begun = 0; /* there is or was a Python in this process */

static ssd_status cannot_start(const char *what, const char *why)
{
    snprintf(start_error, sizeof start_error,
             "%s (%s); build the library anew with python -m runtime embed, or name an "
             "environment that has ssd-trt in SSD_TRT_PYTHON", what, why);
    return SSD_ERROR_PYTHON;
}

/* The python of the environment to use, in `path`. */
static ssd_status find_python(char *path, size_t size)
{
    const char *named = getenv("SSD_TRT_PYTHON");
    struct stat found;
    if (named == NULL || named[0] == '\0')
        named = SSD_PYTHON;
    int is_folder = stat(named, &found) == 0 && S_ISDIR(found.st_mode);
    int length = snprintf(path, size, is_folder ? "%s/bin/python3" : "%s", named);
    if (length < 0 || (size_t)length >= size || access(path, X_OK) != 0)
        return cannot_start("there is no Python to run", named);
    return SSD_OK;
}

/* Nobody runs one in this process yet: isolated, so that neither the environment variables nor the
 * folder of the host decide what is imported, and none of its signals or locales is touched. */
static ssd_status start_interpreter(void)
{
    char python[LONGEST_LINE];
    PyPreConfig before;
    PyConfig config;
    PyStatus status;

    if (find_python(python, sizeof python) != SSD_OK)
        return SSD_ERROR_PYTHON;
    PyPreConfig_InitIsolatedConfig(&before);
    before.utf8_mode = 1;
    status = Py_PreInitialize(&before);
    if (PyStatus_Exception(status))
        return cannot_start("Python cannot be started", status.err_msg ? status.err_msg : "");
    PyConfig_InitIsolatedConfig(&config);
    status = PyConfig_SetBytesString(&config, &config.executable, python);
    if (!PyStatus_Exception(status))
        status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    if (PyStatus_Exception(status))
        return cannot_start("Python cannot be started", status.err_msg ? status.err_msg : python);
    is_own_python = 1;
    PyEval_SaveThread();
    return SSD_OK;
}

/* Python code that makes ssd-trt importable; `problem` is None where it is. */
static const char PREPARE[] =
    "import os, sys\n"
    "places = [] if os.environ.get('SSD_TRT_PYTHON') and is_own else " SSD_PLACES "\n"
    "missing = [each for each in places if each not in sys.path and os.path.isdir(each)]\n"
    "sys.path[:] = [*missing, *sys.path] if is_own else [*sys.path, *missing]\n"
    "problem = None\n"
    "try:\n"
    "    import _cffi_backend\n"
    "    import runtime.embed\n"
    "    if runtime.embed.ABI_VERSION != abi_version:\n"
    "        raise ImportError(runtime.embed.__file__ + ' is of another version')\n"
    "    import runtime.embed.bridge\n"
    "except BaseException as error:\n"
    "    problem = ' '.join(('%s: %s' % (sys.prefix, error)).split())\n";

static ssd_status prepare(void)
{
    ssd_status answer = SSD_ERROR_PYTHON;
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *names = PyDict_New(), *done = NULL, *problem = NULL;
    PyObject *is_own = PyBool_FromLong(is_own_python);
    PyObject *version = PyLong_FromLong(SSD_ABI_VERSION);

    if (names != NULL && version != NULL &&
        PyDict_SetItemString(names, "__builtins__", PyEval_GetBuiltins()) == 0 &&
        PyDict_SetItemString(names, "is_own", is_own) == 0 &&
        PyDict_SetItemString(names, "abi_version", version) == 0)
        done = PyRun_String(PREPARE, Py_file_input, names, names);
    if (done != NULL)
        problem = PyDict_GetItemString(names, "problem");
    if (problem == Py_None) {
        answer = SSD_OK;
    } else {
        const char *text = problem == NULL ? NULL : PyUnicode_AsUTF8(problem);
        cannot_start("ssd-trt cannot be imported", text == NULL ? "Python failed" : text);
    }
    PyErr_Clear();
    Py_XDECREF(done);
    Py_XDECREF(version);
    Py_DECREF(is_own);
    Py_XDECREF(names);
    PyGILState_Release(state);
    return answer;
}

/* Up to Python 3.11 cffi takes the version tag of capsules for a lock, 0 where it is open. In a
 * process that has used capsules (which importing torch does) it is never 0. The interpreter's lock
 * is held, so that nobody gives out another tag meanwhile. */
static int join_python(void)
{
    PyGILState_STATE state = PyGILState_Ensure();
    int answer;
    PyType_Modified(&PyCapsule_Type);
    answer = cffi_start_python();
    PyGILState_Release(state);
    return answer;
}

static ssd_status start_once(void)
{
    /* Python's own modules look its functions up among the global names, where a dlopen of this
     * library alone does not put them. */
    dlopen(SSD_LIBPYTHON, RTLD_NOLOAD | RTLD_GLOBAL | RTLD_NOW);
    if (strncmp(Py_GetVersion(), PY_VERSION, strcspn(PY_VERSION, ".") + 1) != 0 ||
        atoi(Py_GetVersion() + 2) != PY_MINOR_VERSION)
        return cannot_start("this process runs another Python than " PY_VERSION, Py_GetVersion());
    if (!Py_IsInitialized() && start_interpreter() != SSD_OK)
        return SSD_ERROR_PYTHON;
    __atomic_store_n(&has_begun, 1, __ATOMIC_RELEASE);
    if (prepare() != SSD_OK)
        return SSD_ERROR_PYTHON;
    if (join_python() != 0)
        return cannot_start("the library cannot join Python", "see standard error");
    return SSD_OK;
}

/* Whether this process may use what was started: threads and locks do not follow into a fork. */
static int is_forked(void)
{
    pid_t owner = __atomic_load_n(&start_process, __ATOMIC_ACQUIRE);
    return owner != 0 && owner != getpid();
}

/* Whether Python is over: what waits for its lock waits for ever. */
static int has_ended(void)
{
    return __atomic_load_n(&has_begun, __ATOMIC_ACQUIRE) && !Py_IsInitialized();
}

/* Lets go of the interpreter's lock, so that other threads come on; NULL where this thread does not
 * hold it. */
static PyThreadState *let_go_of_python(void)
{
    return Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : NULL;
}

static ssd_status start(void)
{
    int state;
    if (is_forked())
        return fail(SSD_ERROR_FORKED, "this process was forked off one that had started ssd-trt; "
                                      "fork before the first call, or exec");
    state = __atomic_load_n(&start_state, __ATOMIC_ACQUIRE);
    if (state == UNTRIED) {
        /* Who holds the interpreter's lock here would keep it from the thread that starts. */
        PyThreadState *held = let_go_of_python();
        /* Said before it is locked, so that a fork does not wait for a lock that nobody opens. */
        __atomic_store_n(&start_process, getpid(), __ATOMIC_RELEASE);
        pthread_mutex_lock(&start_lock);
        if (start_state == UNTRIED)
            __atomic_store_n(&start_state, start_once() == SSD_OK ? READY : FAILED,
                             __ATOMIC_RELEASE);
        state = start_state;
        pthread_mutex_unlock(&start_lock);
        if (held != NULL)
            PyEval_RestoreThread(held);
    }
    if (state == FAILED) {
        keep_error(start_error);
        return SSD_ERROR_PYTHON;
    }
    if (!Py_IsInitialized())
        return fail(SSD_ERROR_PYTHON, "the Python of this process has ended");
    return SSD_OK;
}
