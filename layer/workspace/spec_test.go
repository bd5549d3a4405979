package workspace

import (
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

func TestWorkspaceSpecValidate(t *testing.T) {
	for _, tt := range []struct {
		source, revision string
		want             Type // "" means atoll.ErrInvalid
	}{
		{"/path/of/a dir", "", TypeLocal},
		{"/path/of/a dir", "main", TypeGit},
		{"https://example.com/a.git", "", TypeGit},
		{"http://127.0.0.1:8080/a", "v1.2/x", TypeGit},
		{"ssh://git@example.com:2222/a.git", "", TypeGit},
		{"git://example.com/a", "", TypeGit},
		{"git@example.com:a/b.git", "", TypeGit},
		{"host:a", "", TypeGit},
		{"file:///a/b", "", TypeGit},

		{"", "", ""},
		{"relative", "", ""},
		{"./relative", "", ""},
		{"-x", "", ""},
		{"-x:y", "", ""},
		{"ext::sh -c x", "", ""},
		{"file://host/a", "", ""},
		{"file:a/b", "", TypeGit}, // a host of that name, to ssh
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
		s := Spec{Name: "w", Source: tt.source, Revision: tt.revision}
		err := s.Validate()
		switch {
		case tt.want == "" && atoll.KindOf(err) != atoll.ErrInvalid:
			t.Errorf("%q at %q: %v, want atoll.ErrInvalid", tt.source, tt.revision, err)
		case tt.want != "" && (err != nil || s.Type() != tt.want):
			t.Errorf("%q at %q: type %s, %v, want %s", tt.source, tt.revision, s.Type(), err, tt.want)
		case err != nil && strings.Contains(err.Error(), "hunter2"):
			t.Errorf("%q: the error repeats the secret: %v", tt.source, err)
		}
	}
	for _, s := range []Spec{
		{Name: "", Source: "/a"}, {Name: "../a", Source: "/a"}, {Name: "w", Project: "../a", Source: "/a"},
		{Name: "w", Source: "https://example.com/a", ReadOnly: true},
	} {
		if err := s.Validate(); atoll.KindOf(err) != atoll.ErrInvalid {
			t.Errorf("%+v: %v, want atoll.ErrInvalid", s, err)
		}
	}
}
