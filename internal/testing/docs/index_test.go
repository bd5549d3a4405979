//go:build linux

package docs_test

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// firstSentence matches the title and the first sentence of a page.
var firstSentence = regexp.MustCompile(`(?s)^# ([^\n]+)\n+(?:<!--[^\n]*-->\n+)?(.+?\.)(?:\s|$)`)

// markup matches the parts of Markdown that llms.txt omits.
var markup = regexp.MustCompile(`\]\([^)]*\)|\[|\*\*`)

// llms.txt lists the pages of the manual with one sentence each, in the form of llmstxt.org.
func TestLLMs(t *testing.T) {
	const path, index = top + "docs/public/llms.txt", "docs/index.md"
	var b strings.Builder
	_, summary := describePage(t, index)
	fmt.Fprintf(&b, "# Atoll\n\n> %s\n", summary)
	pages := listPages(t)
	slices.SortStableFunc(pages, func(a, b string) int { return cmp.Compare(filepath.Dir(a), filepath.Dir(b)) })
	dir := "none"
	for _, page := range pages {
		if page == index || page == "README.md" {
			continue
		}
		name := strings.TrimPrefix(page, "docs/")
		if d := filepath.Dir(name); d != dir {
			dir = d
			fmt.Fprintf(&b, "\n## %s\n\n", map[string]string{".": "Manual", "providers": "Providers", "reference": "Reference"}[dir])
		}
		title, sentence := describePage(t, page)
		fmt.Fprintf(&b, "- [%s](%s.html): %s\n", title, strings.TrimSuffix(name, ".md"), sentence)
	}
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if have, err := os.ReadFile(path); err != nil || string(have) != b.String() {
		t.Errorf("%s is outdated: run go test ./internal/testing/docs -run TestLLMs -update (%v)", path, err)
	}
}

// describePage returns the title and the first sentence of a page.
func describePage(t *testing.T, page string) (title, sentence string) {
	t.Helper()
	m := firstSentence.FindStringSubmatch(readFile(t, top+page))
	if m == nil {
		t.Fatalf("%s does not begin with a title and a sentence", page)
	}
	return m[1], strings.ReplaceAll(markup.ReplaceAllString(m[2], ""), "\n", " ")
}
