//go:build linux

package keeper

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestManual checks that the manual names the rights of root inside, the covered paths and the devices, in alphabetical order.
func TestManual(t *testing.T) {
	const page = "../../../../docs/providers/native.md"
	manual, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("script.go") // which has the names of the capabilities
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(source), "var capabilities = []int{")
	list, _, _ = strings.Cut(list, "}")
	names := regexp.MustCompile(`CAP_\w+`).FindAllString(list, -1)
	if len(names) != len(capabilities) {
		t.Fatalf("script.go names %q, want %d capabilities", names, len(capabilities))
	}
	for what, list := range map[string][]string{"capabilities": names, "empty paths": maskedPaths, "read-only paths": fixedPaths, "devices": devices} {
		list = slices.Sorted(slices.Values(list))
		if want := "`" + strings.Join(list, "`, `") + "`"; !strings.Contains(string(manual), want) {
			t.Errorf("%s does not list the %s as %s", page, what, want)
		}
	}
}
