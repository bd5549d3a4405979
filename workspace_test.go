package atoll

import (
	"strings"
	"testing"
)

func TestWorkspaceSpecValidate(t *testing.T) {
	for _, tt := range []struct {
		source, revision string
		want             WorkspaceType // "" means ErrInvalid
	}{
		{"/path/of/a dir", "", WorkspaceLocal},
		{"/path/of/a dir", "main", WorkspaceGit},
		{"https://example.com/a.git", "", WorkspaceGit},
		{"http://127.0.0.1:8080/a", "v1.2/x", WorkspaceGit},
		{"ssh://git@example.com:2222/a.git", "", WorkspaceGit},
		{"git://example.com/a", "", WorkspaceGit},
		{"git@example.com:a/b.git", "", WorkspaceGit},
		{"host:a", "", WorkspaceGit},
		{"file:///a/b", "", WorkspaceGit},

		{"", "", ""},
		{"relative", "", ""},
		{"./relative", "", ""},
		{"-x", "", ""},
		{"-x:y", "", ""},
		{"ext::sh -c x", "", ""},
		{"file://host/a", "", ""},
		{"file:a/b", "", WorkspaceGit}, // a host of that name, to ssh
		{"ftp://example.com/a", "", ""},
		{"https:///a", "", ""},
		{"ssh://-o/a", "", ""},
		{"ssh://-o@host/a", "", ""},
		{"https://user@example.com/a", "", ""},
		{"https://user:hunter2@example.com/a", "", ""},
		{"ssh://user:hunter2@example.com/a", "", ""},
		{"https://example.com/a?token=hunter2", "", ""},
		{"https://example.com/a#hunter2", "", ""},
		{"https://user:hunter2@exa mple.com/%zz", "", ""},
		{"user:hunter2@example.com:a b\n", "", ""},
		{"/a\x00b", "", ""},
		{"/a\xff", "", ""},
		{"/a", "-x", ""},
		{"/a", "a b", ""},
		{"/a", "a..b", ""},
		{"/a", "a@{1}", ""},
		{"/a", "HEAD~1", ""},
		{"/a", "a:b", ""},
	} {
		s := WorkspaceSpec{Name: "w", Source: tt.source, Revision: tt.revision}
		err := s.Validate()
		switch {
		case tt.want == "" && KindOf(err) != ErrInvalid:
			t.Errorf("%q at %q: %v, want ErrInvalid", tt.source, tt.revision, err)
		case tt.want != "" && (err != nil || s.Type() != tt.want):
			t.Errorf("%q at %q: type %s, %v, want %s", tt.source, tt.revision, s.Type(), err, tt.want)
		case err != nil && strings.Contains(err.Error(), "hunter2"):
			t.Errorf("%q: the error repeats the secret: %v", tt.source, err)
		}
	}
	for _, s := range []WorkspaceSpec{
		{Name: "", Source: "/a"}, {Name: "../a", Source: "/a"}, {Name: "w", Project: "../a", Source: "/a"},
		{Name: "w", Source: "https://example.com/a", ReadOnly: true},
	} {
		if err := s.Validate(); KindOf(err) != ErrInvalid {
			t.Errorf("%+v: %v, want ErrInvalid", s, err)
		}
	}
}

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
