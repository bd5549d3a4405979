package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/packaging/internal/outdir"
)

const top = "../../"

// listPages returns the Markdown files of docs, relative to it, and the path of each one's HTML in the site.
func listPages(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	err := fs.WalkDir(os.DirFS(top+"docs"), ".", func(name string, e fs.DirEntry, err error) error {
		if base, ok := strings.CutSuffix(name, ".md"); ok && err == nil {
			pages[name] = strings.TrimSuffix(base, "README") + ".html"
			if base == "adr/README" {
				pages[name] = "adr/index.html"
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

// The site has all pages, each in its sidebar and with coloured commands, and no dead link or anchor.
func TestSite(t *testing.T) {
	s := site{docs: top + "docs", modules: testenv.VitePress(t), out: filepath.Join(t.TempDir(), "out"), prefix: "/atoll/"}
	if err := s.buildSite(t.Context()); err != nil {
		t.Fatal(err)
	}
	if testenv.RunAll() {
		checkSameSite(t, s)
	}
	pages := listPages(t)
	if got, err := s.checkSite(); err != nil || got != len(pages)+1 { // and 404.html
		t.Errorf("the site has %d pages, want %d and 404.html: %v", got, len(pages), err)
	}
	for source, name := range pages {
		text, page := readFile(t, filepath.Join(s.docs, source)), readFile(t, filepath.Join(s.out, name))
		link := s.prefix + strings.TrimSuffix(name, "index.html")
		if source != "index.md" && !hasSidebarLink(t, page, link) {
			t.Errorf("docs/%s is not in the sidebar: link it from docs/index.md, or a decision from docs/adr/README.md", source)
		}
		want, got := len(shBlock.FindAllString(text, -1)), strings.Count(page, `<div class="language-sh vp-adaptive-theme">`)
		if got != want {
			t.Errorf("docs/%s has %d sh blocks, and %d in the site", source, want, got)
		}
		if want > 0 && !strings.Contains(page, `<span style="--shiki-light:`) {
			t.Errorf("docs/%s: the commands have no colours in the site", source)
		}
		if !strings.Contains(page, "/LICENSE") {
			t.Errorf("docs/%s: the page in the site does not name the licence", source)
		}
	}
}

// checkSameSite reports files that differ in a second build.
func checkSameSite(t *testing.T, s site) {
	t.Helper()
	first := os.DirFS(s.out)
	s.out = filepath.Join(t.TempDir(), "again")
	if err := s.buildSite(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := fs.WalkDir(first, ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		want, err := fs.ReadFile(first, name)
		if err != nil {
			return err
		}
		if got, err := os.ReadFile(filepath.Join(s.out, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("a second build makes another %s: %v", name, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// shBlock matches the begin of a block of commands.
var shBlock = regexp.MustCompile("(?m)^ *```sh\\b")

// hasSidebarLink reports whether the sidebar of a page links to a path.
func hasSidebarLink(t *testing.T, page, path string) bool {
	t.Helper()
	_, sidebar, _ := strings.Cut(page, `<aside class="VPSidebar"`)
	sidebar, _, _ = strings.Cut(sidebar, "</aside>")
	root, err := html.Parse(strings.NewReader(sidebar))
	if err != nil {
		t.Fatal(err)
	}
	for n := range root.Descendants() {
		for _, a := range n.Attr {
			if a.Key == "href" && a.Val == path {
				return true
			}
		}
	}
	return false
}

// A dead link fails the build, and the error names the file and the link.
func TestDeadLink(t *testing.T) {
	s := site{docs: t.TempDir(), modules: testenv.VitePress(t), out: filepath.Join(t.TempDir(), "out"), prefix: "/"}
	if err := os.CopyFS(filepath.Join(s.docs, ".vitepress"), os.DirFS(top+"docs/.vitepress")); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"index.md":        "# Manual\n\nText.\n\n![Picture](./public/logo.svg)\n\n## Start\n\n- [One](./one.md)\n",
		"one.md":          "# One\n\n[Two](./two.md), [file](../go.mod)\n",
		"adr/README.md":   "# Decisions\n",
		"public/logo.svg": "<svg/>",
	} {
		writeFile(t, filepath.Join(s.docs, name), text)
	}
	err := s.buildSite(t.Context())
	if err == nil || !strings.Contains(err.Error(), "./two in file one.md") || strings.Contains(err.Error(), "go.mod") {
		t.Errorf("got %v, want that one.md links to two", err)
	}
}

// The check of a site finds what VitePress does not.
func TestCheck(t *testing.T) {
	tests := []struct{ name, body, want string }{
		{"nothing", `<p id="a">`, ""},
		{"an anchor", `<p id="a"><a href="#a"></a><a href="/x/sub/#b"></a><a href="sub/index.html#b"></a><a href="/x/">`, ""},
		{"a dead anchor", `<a href="#b">`, "index.html links to #b, which does not exist"},
		{"a dead anchor of another page", `<a href="/x/sub/#a">`, "index.html links to /x/sub/#a, which does not exist"},
		{"a dead file", `<a href="none.html">`, "index.html links to none.html, which does not exist"},
		{"a path outside of the site", `<a href="/sub/">`, "index.html links to /sub/, which does not exist"},
		{"another site", `<a href="https://example.com/x#y">`, ""},
		{"pictures", `<img src="a.svg"><img src="data:image/png;base64,AA==">`, ""},
		{"a dead picture", `<img src="b.svg">`, "index.html loads b.svg, which does not exist"},
		{"a picture from elsewhere", `<img src="//example.com/a.svg">`, "index.html loads //example.com/a.svg from another host"},
		{"a font from elsewhere", `<link rel="stylesheet" href="https://example.com/a.css">`, "index.html loads https://example.com/a.css from another host"},
		{"a style from elsewhere", `<link rel="stylesheet" href="bad.css">`, `bad.css loads https://example.com/f.woff2 from another host`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := site{out: t.TempDir(), prefix: "/x/"}
			writeFile(t, filepath.Join(s.out, "index.html"), test.body)
			writeFile(t, filepath.Join(s.out, "sub/index.html"), `<h2 id="b">`)
			writeFile(t, filepath.Join(s.out, "a.svg"), `<svg xmlns="http://www.w3.org/2000/svg"/>`)
			if strings.Contains(test.body, "bad.css") {
				writeFile(t, filepath.Join(s.out, "bad.css"), `@font-face { src: url("https://example.com/f.woff2") } a { background: url(/x/a.svg) }`)
			}
			got := ""
			pages, err := s.checkSite()
			if err != nil {
				got = err.Error()
			} else if pages != 2 {
				t.Errorf("got %d pages, want 2", pages)
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// The program replaces a site and nothing else.
func TestReplaceable(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{dir, filepath.Join(dir, "none")} {
		if err := outdir.Check(name, "site", "hashmap.json"); err != nil {
			t.Error(err)
		}
	}
	writeFile(t, filepath.Join(dir, "work"), "")
	if err := outdir.Check(dir, "site", "hashmap.json"); err == nil {
		t.Error("it would replace a directory with somebody's work")
	}
	writeFile(t, filepath.Join(dir, "hashmap.json"), "{}")
	if err := outdir.Check(dir, "site", "hashmap.json"); err != nil {
		t.Error(err)
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
