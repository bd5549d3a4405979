package frontmatter

import (
	"strings"
	"testing"

	docker "github.com/distribution/reference"

	"github.com/seed46cd37a8/atoll"
)

var (
	sum    = "sha256:" + strings.Repeat("0a", 32)
	longer = "sha512:" + strings.Repeat("0a", 64)
)

func TestResolve(t *testing.T) {
	house := map[string]string{"linux": "host", "python": "registry.example.com/python:3", "go": "golang:1.22", "root": "dir:/srv/root"}
	for _, tt := range []struct {
		images  Images
		runtime string
		want    string
		kind    atoll.Kind
	}{
		// the shortcuts
		{Images{}, "linux", "ubuntu:22.04", ""},
		{Images{}, "bash", "ubuntu:22.04", ""},
		{Images{}, "shell", "ubuntu:22.04", ""},
		{Images{}, "", "ubuntu:22.04", ""},
		{Images{}, "python", "python:3.11-slim", ""},
		{Images{}, "node", "node:20-slim", ""},
		{Images{}, "golang:1.22", "golang:1.22", ""},
		{Images{}, "node:latest", "node:latest", ""},
		{Images{}, "host", "host", ""},
		{Images{}, sum, sum, ""},
		{Images{}, "atoll-local/mine", "atoll-local/mine", ""},
		{Images{}, "localhost:5000/team/app@" + sum, "localhost:5000/team/app@" + sum, ""},

		// other images
		{Images{Shortcuts: house}, "linux", "host", ""},
		{Images{Shortcuts: house}, "bash", "host", ""},
		{Images{Shortcuts: house}, "", "host", ""},
		{Images{Shortcuts: house}, "python", "registry.example.com/python:3", ""},
		{Images{Shortcuts: house}, "node", "node:20-slim", ""},
		{Images{Shortcuts: house}, "go", "golang:1.22", ""},
		{Images{Shortcuts: house}, "root", "dir:/srv/root", ""},
		{Images{Shortcuts: map[string]string{"": "host", "shell": "alpine:3.19"}}, "", "host", ""},
		{Images{Shortcuts: map[string]string{"": "host", "shell": "alpine:3.19"}}, "shell", "alpine:3.19", ""},
		{Images{Shortcuts: map[string]string{"": "host", "shell": "alpine:3.19"}}, "linux", "ubuntu:22.04", ""},

		// invalid images
		{Images{}, "Python", "", atoll.ErrInvalid},
		{Images{}, "a b", "", atoll.ErrInvalid},
		{Images{}, "docker://alpine", "", atoll.ErrInvalid},
		{Images{}, "-v", "", atoll.ErrInvalid},
		{Images{}, "../x", "", atoll.ErrInvalid},
		{Images{}, "/srv/a\nb", "", atoll.ErrInvalid},
		{Images{}, strings.Repeat("0a", 32), "", atoll.ErrInvalid},
		{Images{Allow: []string{"*"}}, "Python", "", atoll.ErrInvalid},

		// paths of this machine
		{Images{}, "/", "", atoll.ErrDenied},
		{Images{}, "dir:/", "", atoll.ErrDenied},
		{Images{}, "oci:/srv/a:1", "", atoll.ErrDenied},
		{Images{}, "docker-archive:/srv/a.tar", "", atoll.ErrDenied},
		{Images{Allow: []string{"*"}}, "dir:/", "", atoll.ErrDenied},
		{Images{Allow: []string{"dir:/srv/*"}}, "dir:/srv/a", "", atoll.ErrDenied},
		{Images{Allow: []string{"dir:/srv/a"}}, "dir:/srv/a", "dir:/srv/a", ""},
		{Images{Allow: []string{"dir:/srv/a"}}, "dir:/srv/a/../..", "", atoll.ErrDenied},

		// shortcuts take precedence
		{Images{Allow: []string{"python:3.11-slim"}}, "python", "python:3.11-slim", ""},
		{Images{Allow: []string{"python:3.11-slim"}}, "linux", "", atoll.ErrDenied},
		{Images{Allow: []string{"python"}}, "python", "", atoll.ErrDenied},
		{Images{Shortcuts: house, Allow: []string{"ubuntu:22.04"}}, "linux", "", atoll.ErrDenied},
		{Images{Shortcuts: house, Allow: []string{"dir:/srv/root"}}, "root", "dir:/srv/root", ""},
		{Images{Shortcuts: house, Allow: []string{"*"}}, "root", "", atoll.ErrDenied},
	} {
		got, err := tt.images.Resolve(tt.runtime)
		if got != tt.want || atoll.KindOf(err) != tt.kind {
			t.Errorf("%+v: Resolve(%q) = %q, %v, want %q, %q", tt.images, tt.runtime, got, err, tt.want, string(tt.kind))
		}
	}
	_, err := Images{Allow: []string{"python:3.11-slim", "ghcr.io/acme/*"}}.Resolve("golang:1.22")
	if want := "image: golang:1.22: not allowed here: use one of python:3.11-slim, ghcr.io/acme/*"; err == nil || err.Error() != want {
		t.Errorf("an image that is not allowed: %v, want %s", err, want)
	}
}

func TestAllow(t *testing.T) {
	for _, tt := range []struct {
		pattern string
		yes, no []string
	}{
		{"golang:1.22",
			[]string{"golang:1.22", "docker.io/golang:1.22", "docker.io/library/golang:1.22", "index.docker.io/library/golang:1.22"},
			[]string{"golang:1.22.1", "golang", "golang:1.22@" + sum, "ghcr.io/golang:1.22", "acme/golang:1.22", "Docker.io/golang:1.22"}},
		{"golang", []string{"golang:latest"}, []string{"golang:1"}},
		{"golang@" + sum, []string{"golang@" + sum, "golang:1.22@" + sum}, []string{"golang", "golang@" + longer}},
		{"golang:1.22@" + sum, []string{"golang@" + sum}, []string{"golang:1.22"}},
		{"golang:*",
			[]string{"golang", "golang:1.22", "docker.io/library/golang:1"},
			[]string{"golang:5000/x", "golang:5000/x:1", "golang/x", "golang-x", "golang:1@" + sum, "ghcr.io/golang:1"}},
		{"golang:1.2*", []string{"golang:1.2", "golang:1.22"}, []string{"golang:1.1", "golang:1.2@" + sum}},
		{"golang*", []string{"golang", "golang-x:1", "golang@" + sum}, []string{"golang.example.com/x", "golang/x"}},
		{"acme/*", []string{"acme/x", "docker.io/acme/x:1", "acme/x@" + sum}, []string{"acme", "acme.com/x", "ghcr.io/acme/x"}},
		{"docker.io/*", []string{"golang", "acme/x"}, []string{"ghcr.io/x", "atoll-local/x", "host", sum}},
		{"docker.io/golang*", []string{"golang:1"}, []string{"golang/x", "alpine"}},
		{"ghcr.io/acme/*", []string{"ghcr.io/acme/x", "ghcr.io/acme/x/y:1"}, []string{"GHCR.io/acme/x", "ghcr.io/acme", "ghcr.io/acme-x/y", "ghcr.io.example.com/acme/x", "docker.io/ghcr.io/acme/x"}},
		{"localhost:5000/*", []string{"localhost:5000/x"}, []string{"localhost:5001/x", "localhost:50000/x"}},
		{"atoll-local/*", []string{"atoll-local/x"}, []string{"docker.io/atoll-local/x", "x/atoll-local"}},
		{"atoll-local/x", []string{"atoll-local/x:latest"}, []string{"docker.io/atoll-local/x", "atoll-local/x:2"}},
		{"host", []string{"host"}, []string{"host:latest", "docker.io/library/host"}},
		{"*", []string{"golang", "ghcr.io/x", "host", sum, "atoll-local/x"}, []string{"/srv", "oci:/srv"}},
		{sum, []string{sum}, []string{"x@" + sum, longer}},
		{"sha*", []string{"shawn"}, []string{sum}},
		{"gol*g:*", nil, []string{"golang:1", "gol*g:1"}}, // an invalid pattern allows nothing
	} {
		im := Images{Allow: []string{tt.pattern}}
		for _, ref := range tt.yes {
			if got, err := im.Resolve(ref); err != nil || got != ref {
				t.Errorf("%s: Resolve(%q) = %q, %v, want it allowed as it is", tt.pattern, ref, got, err)
			}
		}
		for _, ref := range tt.no {
			if got, err := im.Resolve(ref); got != "" || err == nil {
				t.Errorf("%s: Resolve(%q) = %q, want it denied", tt.pattern, ref, got)
			}
		}
	}
}

func TestCheck(t *testing.T) {
	good := Images{
		Shortcuts: map[string]string{"linux": "host", "": "ubuntu:22.04", "root": "dir:/srv/root"},
		Allow:     []string{"*", "python:*", "python:3.*", "ghcr.io/acme/*", "ghcr.io/*", "host", sum, "/srv/root", "localhost/*"},
	}
	if err := good.Check(); err != nil {
		t.Errorf("Check: %v, want nil", err)
	}
	if err := (Images{}).Check(); err != nil {
		t.Errorf("Check of nothing: %v, want nil", err)
	}
	bad := Images{
		Shortcuts: map[string]string{"linux": "", "python": "Python"},
		Allow:     []string{"", "a b*", "*:1", "a**", "ghcr.io*", "localhost:5000*", "dir:/srv/*", "https://ghcr.io/x"},
	}
	err := bad.Check()
	if atoll.KindOf(err) != atoll.ErrInvalid {
		t.Fatalf("Check: %v, want ErrInvalid", err)
	}
	for _, want := range []string{
		`shortcut "linux": "": not an image`, `shortcut "python": "Python": not an image`,
		`allowed image "": not an image`, `allowed image "a b*": write what names of images begin with`,
		`allowed image "*:1": not an image`, `allowed image "a**": put * at the end only`,
		`allowed image "ghcr.io*": end it in /* for all of a registry: ghcr.io/*`,
		`allowed image "localhost:5000*": end it in /* for all of a registry: localhost:5000/*`,
		`allowed image "dir:/srv/*": paths of this machine are allowed one by one`,
		`allowed image "https://ghcr.io/x": not an image: leave out the https:// in front`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Check does not say %q:\n%v", want, err)
		}
	}
}

// dockerName returns docker's canonical name for ref, "" if docker rejects it.
func dockerName(ref string) string {
	named, err := docker.ParseNormalizedNamed(ref)
	if err != nil || docker.Domain(named) == "" { // docker also accepts names such as a.b_c/d, whose host is invalid
		return ""
	}
	name := docker.Domain(named) + "/" + docker.Path(named)
	if d, ok := named.(docker.Digested); ok {
		return name + "@" + d.Digest().String()
	}
	return name + ":" + docker.TagNameOnly(named).(docker.Tagged).Tag()
}

// Whether an image is allowed depends on its full name, which must be docker's
// canonical name.
func FuzzReference(f *testing.F) {
	for _, ref := range []string{
		"a", "a:1", "a/b", "a.b/c", "a:5000/b", "a:5000/b:1", "localhost/a", "localhost", "A/b", "[::1]:5000/a", "a@" + sum, "a:1@" + sum,
		"index.docker.io/a", "Index.docker.io/a", "Docker.io/a", "docker.io/a/b", "a__b", "a--b", "a..b", "a___b", "a/", "/a", "a:", "a@", "a-/b", "-a", "a:-1", "a@sha256:0", "a/A", "x.y",
		strings.Repeat("a", 256), "a:" + strings.Repeat("b", 129), "a.b_c/d", strings.Repeat("0", 240), "atoll-local/a", longer,
	} {
		f.Add(ref)
	}
	f.Fuzz(func(t *testing.T, ref string) {
		r, ok := parseReference(ref)
		want := dockerName(ref)
		if ok && r.fullName() != want {
			t.Errorf("%q is %q, want %q", ref, r.fullName(), want)
		}
		// docker accepts more digests and longer names
		if !ok && want != "" && !strings.Contains(ref, "@") && len(ref) <= 200 && !idForm().MatchString(strings.Split(ref, ":")[0]) {
			t.Errorf("%q is no image, want %q", ref, want)
		}
		for pattern, prefix := range map[string]string{"ghcr.io/acme/*": "ghcr.io/acme/", "a:*": "docker.io/library/a:", "docker.io/*": "docker.io/", "a/*": "docker.io/a/"} {
			got, err := Images{Allow: []string{pattern}}.Resolve(ref)
			if err == nil && !strings.HasPrefix(dockerName(got), prefix) {
				t.Errorf("%q allows %q, which is %q", pattern, got, dockerName(got))
			}
		}
	})
}
