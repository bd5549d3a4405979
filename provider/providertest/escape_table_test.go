//go:build linux

package providertest

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// escapeColumns lists the columns of the manual's table of escape attempts.
var escapeColumns = []struct {
	isolation atoll.Isolation
	suite     string // the test that runs the suite
}{
	{atoll.IsolationContainer, "../native/native_test.go"},
	{atoll.IsolationKernel, "../gvisor/gvisor_test.go"},
	{atoll.IsolationContainer, "../docker/docker_test.go"},
}

// exception matches the exception of a promise of the group escape.
var exception = regexp.MustCompile(`providertest\.Except\("escape/([^"]+)"`)

// TestEscapeTable checks that the manual's table of escape attempts has the promises of the group, and what the suites of the
// providers say of them.
func TestEscapeTable(t *testing.T) {
	const page = "../../docs/providers/native.md"
	var want strings.Builder
	excepted := make([]map[string]bool, len(escapeColumns))
	for i, c := range escapeColumns {
		excepted[i] = map[string]bool{}
		for _, m := range exception.FindAllStringSubmatch(readText(t, c.suite), -1) {
			excepted[i][m[1]] = true
		}
	}
	for _, p := range escapePromises {
		fmt.Fprintf(&want, "| %s |", p.name)
		for i, c := range escapeColumns {
			cell := "holds"
			if excepted[i][p.name] {
				cell = "does not hold"
			}
			for _, need := range p.needs {
				if need(atoll.Info{Isolation: c.isolation, Caps: atoll.Caps{Users: true, BindMounts: true, Files: true}}, nil) != "" {
					cell = "does not apply"
				}
			}
			fmt.Fprintf(&want, " %s |", cell)
		}
		want.WriteString("\n")
	}
	_, rest, ok := strings.Cut(readText(t, page), "| promise | native | gvisor | docker |\n| --- | --- | --- | --- |\n")
	if got, _, _ := strings.Cut(rest, "\n\n"); !ok || got+"\n" != want.String() {
		t.Errorf("%s: the table of escape attempts is\n%s\nwant\n%s", page, got, &want)
	}
}

func readText(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
