// Package browsertest tests the dashboard and the page of examples/signup in chromium.
//
// It is a module of its own, so that the library's go.mod does not require what drives the browser.
package browsertest
