// Package rights has the tests of the roles of package schema: what each may do, and what it may not.
// They call all of the library. Beside package schema's own tests it would be compiled once more.
package rights
