// Package repotest tests the repository itself: the direction of imports, forms of SQL that are known
// to break, the links and names of the documentation, its list of log records, and rules of all packages.
package repotest
