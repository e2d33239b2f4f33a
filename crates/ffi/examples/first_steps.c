/* Opens a database, writes and reads a few pairs, and shows the handling of errors. */

#include <sheaf.h>
#include <stdio.h>
#include <stdlib.h>

/* Prints the error and ends the program. */
static void fail(sheaf_error *error) {
  sheaf_bytes path;
  fprintf(stderr, "error %d: %s\n", (int)sheaf_error_code(error), sheaf_error_message(error, NULL));
  if (sheaf_error_text(error, SHEAF_FIELD_PATH, &path)) {
    fprintf(stderr, "path: %.*s\n", (int)path.size, (const char *)path.data);
  }
  sheaf_error_free(error);
  exit(1);
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: first_steps DIRECTORY\n");
    return 2;
  }
  sheaf_error *error;
  sheaf_db *db;
  sheaf_keyspace *users;
  if (sheaf_open(sheaf_str(argv[1]), NULL, &db, &error) != SHEAF_OK) {
    fail(error);
  }
  if (sheaf_db_keyspace(db, sheaf_str("users"), NULL, &users, &error) != SHEAF_OK) {
    fail(error);
  }
  if (sheaf_insert(users, sheaf_str("ada"), sheaf_str("lovelace"), &error) != SHEAF_OK) {
    fail(error);
  }

  /* Reads into a buffer of the caller: the fastest way. */
  char name[64];
  size_t size;
  sheaf_code code = sheaf_get_into(users, sheaf_str("ada"), sheaf_buffer_of(name, sizeof name), &size, &error);
  if (code == SHEAF_OK) {
    printf("ada %.*s\n", (int)size, name);
  } else if (code == SHEAF_BUFFER_TOO_SMALL) {
    printf("a buffer of %zu bytes is needed\n", size);
  } else if (code == SHEAF_NOT_FOUND) {
    printf("there is no ada\n");
  } else {
    fail(error);
  }

  /* Reads a value of any size. */
  sheaf_value *value;
  if (sheaf_get(users, sheaf_str("ada"), &value, &error) == SHEAF_OK) {
    sheaf_bytes bytes = sheaf_value_bytes(value);
    printf("%zu bytes\n", bytes.size);
    sheaf_value_free(value);
  }

  if (sheaf_db_close(db, &error) != SHEAF_OK) {
    fail(error);
  }
  sheaf_keyspace_free(users);
  sheaf_db_free(db);
  return 0;
}
