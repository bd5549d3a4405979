package atoll

import (
	"strings"
	"testing"
)

func TestSpecWorkspace(t *testing.T) {
	id := strings.Repeat("0a", 20)
	for ref, want := range map[WorkspaceRef]bool{
		{}:                                       true,
		{Name: "w"}:                              true,
		{Name: "w", Commit: id}:                  true,
		{Name: "w", ReadOnly: true}:              true,
		{Source: "/a"}:                           true,
		{Name: "w", Source: "/a"}:                false,
		{Commit: id}:                             false,
		{ReadOnly: true}:                         false,
		{Name: "a/b"}:                            false,
		{Source: "relative"}:                     false,
		{Name: "w", Commit: id[:7]}:              false,
		{Name: "w", Commit: "--" + id[2:]}:       false,
		{Name: "w", Commit: strings.ToUpper(id)}: false,
	} {
		err := (&Spec{Workspace: ref}).Validate()
		if (err == nil) != want || err != nil && KindOf(err) != ErrInvalid {
			t.Errorf("%+v: %v, want it valid: %v", ref, err, want)
		}
	}
}
