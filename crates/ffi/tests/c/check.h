/* Checks of the C tests. */

#ifndef CHECK_H
#define CHECK_H

#include <sheaf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program unless the condition holds. */
#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);         \
      exit(1);                                                                \
    }                                                                         \
  } while (0)

/* Calls a function with `&error` as its last argument, and requires this code. Frees the error. */
#define EXPECT(code, call)                                                     \
  do {                                                                         \
    sheaf_error *error = NULL;                                                 \
    sheaf_code got = (call);                                                   \
    if (got != (code)) {                                                       \
      fprintf(stderr, "%s:%d: code %d, expected %s: %s\n", __FILE__, __LINE__, \
              (int)got, #code, sheaf_error_message(error, NULL));              \
      exit(1);                                                                 \
    }                                                                          \
    CHECK((error != NULL) == (got >= SHEAF_INVALID_ARGUMENT));                 \
    CHECK(sheaf_error_code(error) == (error == NULL ? SHEAF_OK : got));        \
    sheaf_error_free(error);                                                   \
  } while (0)

#define OK(call) EXPECT(SHEAF_OK, call)

static inline int equal(sheaf_bytes bytes, const char *text) {
  return bytes.size == strlen(text) && memcmp(bytes.data, text, bytes.size) == 0;
}

/* Returns true if the value is this text, and frees it. */
static inline int take_equal(sheaf_value *value, const char *text) {
  int is_equal = value != NULL && equal(sheaf_value_bytes(value), text);
  sheaf_value_free(value);
  return is_equal;
}

/* Returns true if the value contains this text, and frees it. */
static inline int take_contains(sheaf_value *value, const char *text) {
  sheaf_bytes bytes = sheaf_value_bytes(value);
  size_t size = strlen(text);
  int is_found = 0;
  for (size_t at = 0; at + size <= bytes.size; at++) {
    is_found |= memcmp((const char *)bytes.data + at, text, size) == 0;
  }
  sheaf_value_free(value);
  return is_found;
}

/* Returns the path of `name` in the directory of the test; the caller frees it. */
static inline char *path_in(const char *directory, const char *name) {
  size_t size = strlen(directory) + strlen(name) + 2;
  char *path = malloc(size);
  CHECK(path != NULL);
  snprintf(path, size, "%s/%s", directory, name);
  return path;
}

#endif
