//! Every engine keeps every promise of the facade.

sheaf_testkit::every_engine!(conformance);
