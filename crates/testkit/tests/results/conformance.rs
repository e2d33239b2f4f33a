//! Every engine keeps every promise of the facade.

sheaf_testkit::every_engine!(conformance);

// In the substitute of persistent memory. Promises that need a simulated disk are empty here.
sheaf_testkit::conformance!(flat_persistent, sheaf_testkit::fixture::TestSubject::flat_persistent());
