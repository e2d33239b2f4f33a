//! The kill -9 loop.

sheaf_testkit::every_engine!(kill_suite);
