"""The routes. Its modules import FastAPI and pydantic as they load; the rest imports them late."""
