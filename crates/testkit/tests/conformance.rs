//! Every engine keeps every promise.

sheaf_testkit::every_engine!(conformance);
