//! Kill loop: processes that are killed by SIGKILL.

sheaf_testkit::every_engine!(kill_suite);
