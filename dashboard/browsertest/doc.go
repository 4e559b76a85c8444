// Package browsertest tests the dashboard in chromium.
//
// It is a module of its own, so that the library's go.mod does not require what drives the browser.
package browsertest
