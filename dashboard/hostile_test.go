package dashboard_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/dashboardtest"
	"github.com/txoutbox/outbox/internal/needs"
)

var values = regexp.MustCompile(` value="[^"]*"`)

func TestHostileTextsStayTexts(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newDatabase(t)
	dashboardtest.Haunt(t, db.DB)
	s := serve(t, db, dashboard.Config{Authorize: func(*http.Request) (dashboard.Access, string) {
		return everything, `<script>window.pwned=1</script>`
	}})
	bad := regexp.MustCompile(`<script>|<img|<svg/|<style|<base|<b |<button autofocus|<template|<meta http-equiv|` +
		"\u202e|\u2066|\u200b|\x1b|\x01")
	for _, path := range dashboardtest.HauntedPages(t, db.DB) {
		a := s.get(t, path)
		if a.status != 200 {
			t.Errorf("%s: got %d: %s", path, a.status, a.text())
			continue
		}
		body := values.ReplaceAllString(a.body, "") // a form sends names as they are
		if at := bad.FindStringIndex(body); at != nil {
			t.Errorf("%s has in it: …%q", path, body[max(at[0]-80, 0):min(at[0]+80, len(body))])
		}
		if len(a.body) > 1<<20 {
			t.Errorf("%s has %d bytes", path, len(a.body))
		}
		if q, ok := strings.CutPrefix(path, "type?name="); ok { // the header of a redirect is a line
			name, _ := url.QueryUnescape(q)
			a := s.post(t, "pause", "name="+q)
			if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) { // PauseType knows no such type
				a.has(t, 400)
			} else if a.status != 303 || !strings.HasPrefix(a.header.Get("Location"), "./type?") {
				t.Errorf("pause %q: got %d %q", name, a.status, a.header.Get("Location"))
			}
		}
	}
	s.get(t, "task?id=7000001&payload=show").has(t, 200, "These are the first 64 kB of 2,600,012 bytes")
	s.get(t, "type?name="+url.QueryEscape(dashboardtest.Hostile[15])).has(t, 200,
		`evil\u202egnp.exe \u2066\u2067\u200b\ufeff\u061c`)
}
