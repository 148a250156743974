/* What the programs of these tests have in common. A program prints the line that failed. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ssd.h"

#define CHECK(claim)                                                                     \
    do {                                                                                 \
        if (!(claim)) {                                                                  \
            fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #claim,   \
                    ssd_last_error());                                                   \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

/* A refusal has to say why. */
#define REFUSED(call, status, word)                                                      \
    do {                                                                                 \
        ssd_status refused = (call);                                                     \
        if (refused != (status) || strstr(ssd_last_error(), (word)) == NULL) {           \
            fprintf(stderr, "%s:%d: %s gave %s (%s)\n", __FILE__, __LINE__, #call,       \
                    ssd_status_name(refused), ssd_last_error());                         \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

#define OK(call) CHECK((call) == SSD_OK)

#endif
