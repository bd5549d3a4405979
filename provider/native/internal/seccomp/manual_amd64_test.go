//go:build linux

package seccomp

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the lists of system calls into the manual")

// TestManual checks that the manual lists all calls with the reasons of this package. It runs on amd64, which has all calls that
// arm64 has.
func TestManual(t *testing.T) {
	const page = "../../../../docs/providers/native.md"
	for kind, list := range map[string]string{"allowed": renderGroups(Allowed), "refused": renderGroups(NestedOnly, Refused)} {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		begin, end := "<!-- "+kind+" calls: written by go test ./provider/native/internal/seccomp -update -->\n", "<!-- end -->\n"
		before, rest, ok := strings.Cut(string(data), begin)
		got, after, ok2 := strings.Cut(rest, end)
		switch {
		case !ok || !ok2:
			t.Fatalf("%s: no %q and %q", page, begin, end)
		case got == list:
		case !*update:
			t.Errorf("%s: the list of %s calls is outdated: run go test ./provider/native/internal/seccomp -run TestManual -update", page, kind)
		default:
			if err := os.WriteFile(page, []byte(before+begin+list+end+after), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// renderGroups returns a table of the groups with one of the accesses.
func renderGroups(access ...Access) string {
	var b strings.Builder
	b.WriteString("| group | reason | calls |\n| --- | --- | --- |\n")
	for _, g := range Groups() {
		if slices.Contains(access, g.Access) {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", g.Name, g.Reason, renderCalls(g))
		}
	}
	return b.String()
}

// renderCalls returns the calls of a group. Those that only amd64 has are at the end.
func renderCalls(g Group) string {
	both := len(g.Calls) - len(ownCalls[g.Name])
	list := func(names []string) string { return "`" + strings.Join(names, "`, `") + "`" }
	if both == len(g.Calls) {
		return list(g.Calls)
	}
	return list(g.Calls[:both]) + "; on amd64 also " + list(g.Calls[both:])
}
