/* patience.h - how long tests wait for what is sure to come. */
#ifndef PP_TESTS_PATIENCE_H
#define PP_TESTS_PATIENCE_H

/* A sanitized program computes tens of times more slowly, and a model is loaded at that pace. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { TEST_PATIENCE_MS = 600000 };
#else
enum { TEST_PATIENCE_MS = 60000 };
#endif

#endif
