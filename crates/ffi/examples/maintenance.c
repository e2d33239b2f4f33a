/* Backup with progress, restore, verification, statistics, conversion and repair. */

#include "../tests/c/check.h"

/* Counts the calls, and cancels at the second one if `cancel` is set. */
struct watch {
  int calls;
  int cancel;
};

static int32_t on_progress(void *context, int32_t phase, uint64_t done, uint64_t total) {
  struct watch *watch = context;
  CHECK(phase >= SHEAF_PHASE_COPYING && phase <= SHEAF_PHASE_DONE);
  CHECK(phase == SHEAF_PHASE_CATCHING_UP || done <= total);
  return ++watch->calls > 1 && watch->cancel;
}

static void on_finding(void *context, sheaf_error *error) {
  printf("damage: %s\n", sheaf_error_message(error, NULL));
  ++*(int *)context;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  char *path = path_in(argv[1], "my.db");
  char *monday = path_in(argv[1], "monday");
  char *tuesday = path_in(argv[1], "tuesday");
  char *restored = path_in(argv[1], "restored.db");
  char *repaired = path_in(argv[1], "repaired.db");
  sheaf_db *db;
  sheaf_keyspace *words;
  sheaf_value *report;
  OK(sheaf_open(sheaf_str(path), NULL, &db, &error));
  OK(sheaf_db_keyspace(db, sheaf_str("words"), NULL, &words, &error));
  for (int i = 0; i < 1000; i++) {
    char key[16];
    int size = snprintf(key, sizeof key, "%08d", i);
    OK(sheaf_insert(words, sheaf_bytes_of(key, (size_t)size), sheaf_str("a word"), &error));
  }

  struct watch watch = {0, 0};
  OK(sheaf_db_backup(db, sheaf_str(monday), NULL, true, 0, on_progress, &watch, &report, &error));
  CHECK(watch.calls > 0 && take_contains(report, "\"copied_bytes\":"));
  /* Files that have not changed since Monday are linked. */
  sheaf_bytes base = sheaf_str(monday);
  OK(sheaf_db_backup(db, sheaf_str(tuesday), &base, true, UINT64_MAX, NULL, NULL, NULL, &error));

  /* A callback that returns another number than 0 cancels; nothing is left of the backup. */
  struct watch cancelling = {0, 1};
  char *cancelled = path_in(argv[1], "cancelled");
  EXPECT(SHEAF_CANCELLED, sheaf_db_backup(db, sheaf_str(cancelled), NULL, true, 0, on_progress,
                                          &cancelling, &report, &error));
  CHECK(report == NULL);

  int findings = 0;
  OK(sheaf_db_verify(db, on_finding, &findings, &report, &error));
  CHECK(findings == 0 && take_contains(report, "\"pairs\":1000"));

  sheaf_value *stats;
  OK(sheaf_db_stats(db, &stats, &error));
  CHECK(take_contains(stats, "\"memory\":{"));
  OK(sheaf_db_overview(db, &stats, &error));
  CHECK(take_contains(stats, "\"name\":\"words\""));

  sheaf_keyspace_options *kreon;
  OK(sheaf_keyspace_options_create(sheaf_str("kreon"), &kreon, &error));
  OK(sheaf_db_estimate_conversion(db, sheaf_str("words"), &report, &error));
  CHECK(take_contains(report, "\"required_bytes\":"));
  OK(sheaf_db_convert(db, sheaf_str("words"), kreon, on_progress, &watch, &report, &error));
  CHECK(take_contains(report, "\"copied_pairs\":1000"));
  sheaf_keyspace_options_free(kreon);
  OK(sheaf_keyspace_compact(words, &report, &error));
  CHECK(take_contains(report, "\"rewritten_pairs\":"));

  sheaf_keyspace_free(words);
  OK(sheaf_db_close(db, &error));
  sheaf_db_free(db);

  OK(sheaf_restore(sheaf_str(tuesday), sheaf_str(restored), NULL, on_progress, &watch, NULL, &error));
  OK(sheaf_repair(sheaf_str(path), sheaf_str(repaired), NULL, false, on_progress, &watch, &report, &error));
  CHECK(take_contains(report, "\"is_complete\":true"));
  uint64_t count;
  OK(sheaf_open(sheaf_str(restored), NULL, &db, &error));
  OK(sheaf_db_open_keyspace(db, sheaf_str("words"), &words, &error));
  OK(sheaf_len(words, &count, &error));
  CHECK(count == 1000);
  sheaf_keyspace_free(words);
  sheaf_db_free(db);
  free(path), free(monday), free(tuesday), free(restored), free(repaired), free(cancelled);
  return 0;
}
