package frontmatter

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/seed46cd37a8/atoll"
)

// Images maps runtimes to images. The zero value has these shortcuts, and allows every
// image of a registry:
//
//	linux, bash, shell, ""  ubuntu:22.04
//	python                  python:3.11-slim
//	node                    node:20-slim
//
// Any other runtime is an image itself. An image with the name of a shortcut needs its
// tag: node:latest.
type Images struct {
	// Shortcuts maps names to images, replacing and extending the default shortcuts:
	// "linux": "host". Names must match exactly; bash, shell and "" mean linux unless
	// they are listed.
	Shortcuts map[string]string

	// Allow lists the allowed images, or prefixes of their names followed by "*":
	// python:3.11-slim, ghcr.io/acme/*. It applies to the image of a shortcut, and to
	// full names: docker.io/library/golang:1 is golang:1. The tag of an image that also
	// has a digest is ignored. Empty allows every image except paths of this machine:
	// those must be listed here literally, or be the image of a shortcut.
	Allow []string
}

// Check returns all invalid shortcuts and patterns, as ErrInvalid.
func (im Images) Check() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(im.Shortcuts)) {
		if err := checkReference(im.Shortcuts[name]); err != nil {
			errs = append(errs, fmt.Errorf("shortcut %q: %q: %w", name, im.Shortcuts[name], err))
		}
	}
	for _, pattern := range im.Allow {
		if err := checkPattern(pattern); err != nil {
			errs = append(errs, fmt.Errorf("allowed image %q: %w", pattern, err))
		}
	}
	if len(errs) > 0 {
		return atoll.E("images", "", atoll.ErrInvalid, errors.Join(errs...))
	}
	return nil
}

// Resolve returns the image for a runtime. An invalid image is ErrInvalid; one that
// isn't allowed is ErrDenied, and the error lists the allowed ones.
func (im Images) Resolve(runtime string) (string, error) {
	ref, short := im.findShortcut(runtime)
	if !short {
		ref = runtime
		if err := checkReference(ref); err != nil {
			return "", atoll.Errorf("image", "", atoll.ErrInvalid, "%.60q: %w", ref, err)
		}
	}
	switch {
	case len(im.Allow) > 0 && !slices.ContainsFunc(im.Allow, func(p string) bool { return matchPattern(p, ref) }):
		return "", atoll.Errorf("image", "", atoll.ErrDenied, "%s: not allowed here: use one of %s", ref, strings.Join(im.Allow, ", "))
	case len(im.Allow) == 0 && !short && isPath(ref):
		return "", atoll.Errorf("image", "", atoll.ErrDenied, "%s: paths of this machine are not allowed here: use linux, python, node or an image of a registry", ref)
	}
	return ref, nil
}

func (im Images) findShortcut(runtime string) (ref string, ok bool) {
	if ref, ok := im.Shortcuts[runtime]; ok {
		return ref, true
	}
	switch runtime {
	case "", "bash", "shell":
		return im.findShortcut("linux")
	case "linux":
		return "ubuntu:22.04", true
	case "python":
		return "python:3.11-slim", true
	case "node":
		return "node:20-slim", true
	}
	return "", false
}

const (
	hostImage   = "host"         // this machine's programs, if the provider supports it
	localPrefix = "atoll-local/" // prefix of images that exist in no registry
	hub         = "docker.io"
)

// A reference is the parsed name of an image in a registry.
type reference struct {
	host, path, tag, digest string
}

var (
	hostForm   = lazyRegexp(`^(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?$`)
	pathForm   = lazyRegexp(`^[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*)*$`)
	tagForm    = lazyRegexp(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
	digestForm = lazyRegexp(`^(?:sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$`)
	idForm     = lazyRegexp(`^[0-9a-f]{64}$`)
)

// lazyRegexp compiles an expression on first use: most programs that import this
// package never use one.
func lazyRegexp(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// maxName is the most bytes of a name, without tag and digest, that registries accept.
const maxName = 255

// parseReference splits the name of an image as registry clients do: the part before
// the first slash is a host if it cannot be part of a path.
func parseReference(text string) (reference, bool) {
	var ref reference
	rest, digest, digested := strings.Cut(text, "@")
	ref.digest = digest
	tagged := false
	if i := strings.LastIndexByte(rest, ':'); i > strings.LastIndexByte(rest, '/') {
		rest, ref.tag, tagged = rest[:i], rest[i+1:], true
	}
	ref.path = rest
	first, after, slash := strings.Cut(rest, "/")
	if slash && isHost(first) {
		ref.host, ref.path = first, after
	}
	ok := len(fullName(ref.host, ref.path)) <= maxName &&
		(ref.host == "" || hostForm().MatchString(ref.host)) && pathForm().MatchString(ref.path) &&
		(!tagged || tagForm().MatchString(ref.tag)) &&
		(!digested || digestForm().MatchString(ref.digest)) &&
		!idForm().MatchString(rest) // engines take it for an image's id
	return ref, ok
}

func isHost(first string) bool {
	return strings.ContainsAny(first, ".:") || first == "localhost" || strings.ToLower(first) != first
}

// fullName returns the canonical form of ref.
func (ref reference) fullName() string {
	name := fullName(ref.host, ref.path)
	switch {
	case ref.digest != "":
		return name + "@" + ref.digest // the tag is ignored then
	case ref.tag != "":
		return name + ":" + ref.tag
	}
	return name + ":latest"
}

func fullName(host, path string) string {
	if host == "" || host == "index.docker.io" {
		host = hub
	}
	if host == hub && path != "" && !strings.Contains(path, "/") {
		path = "library/" + path
	}
	return host + "/" + path
}

// OfMachine reports whether an image only exists on this machine: its own programs, an
// image in a directory or an archive, or one with a local name.
func OfMachine(ref string) bool {
	return ref == hostImage || isPath(ref) || strings.HasPrefix(ref, localPrefix)
}

// isPath reports whether ref names an image in a directory or an archive.
func isPath(ref string) bool {
	for _, scheme := range []string{"/", "dir:/", "oci:/", "docker-archive:/"} {
		if strings.HasPrefix(ref, scheme) {
			return true
		}
	}
	return false
}

// checkReference returns an error with advice if ref is no image.
func checkReference(ref string) error {
	if ref == hostImage || digestForm().MatchString(ref) || isPath(ref) && !strings.ContainsAny(ref, "\x00\n\r") {
		return nil
	}
	if scheme, _, ok := strings.Cut(ref, "://"); ok {
		return fmt.Errorf("not an image: leave out the %.20s:// in front", scheme)
	}
	if _, ok := parseReference(ref); !ok {
		return errors.New("not an image: write linux, python, node, or a name like golang:1.22 or registry.example.com/team/app:1, in lower case")
	}
	return nil
}

// checkPattern returns an error with advice for a pattern that matches nothing, or
// something else than it seems to.
func checkPattern(pattern string) error {
	prefix, open := strings.CutSuffix(pattern, "*")
	if !open {
		return checkReference(pattern)
	}
	first, _, slash := strings.Cut(prefix, "/")
	name, _, _ := strings.Cut(first, ":")
	switch {
	case strings.Contains(prefix, "*"):
		return errors.New("put * at the end only")
	case isPath(prefix):
		return errors.New("paths of this machine are allowed one by one: leave out the *")
	case !slash && (name == "localhost" || strings.Contains(name, ".")):
		return fmt.Errorf("end it in /* for all of a registry: %s/*", first)
	case strings.ContainsFunc(prefix, func(r rune) bool { return r <= ' ' || r > '~' }):
		return errors.New("write what names of images begin with, like python:* or ghcr.io/acme/*")
	}
	return nil
}

// matchPattern reports whether pattern allows ref. It compares full names, so that a
// pattern for Docker Hub ("python:*") doesn't allow a registry of that name
// ("python:5000/x").
func matchPattern(pattern, ref string) bool {
	prefix, open := strings.CutSuffix(pattern, "*")
	switch {
	case checkPattern(pattern) != nil:
		return false
	case !open:
		return normalName(pattern) == normalName(ref)
	case isPath(ref):
		return false
	case prefix == "":
		return true
	case ref == hostImage, digestForm().MatchString(ref):
		return false // neither belongs to a registry
	}
	return strings.HasPrefix(normalName(ref), normalPrefix(prefix))
}

func normalName(ref string) string {
	if ref == hostImage || isPath(ref) || digestForm().MatchString(ref) {
		return ref
	}
	r, _ := parseReference(ref)
	full := r.fullName()
	if strings.HasPrefix(ref, localPrefix) {
		return strings.TrimPrefix(full, hub+"/")
	}
	return full
}

func normalPrefix(prefix string) string {
	if strings.HasPrefix(prefix, localPrefix) {
		return prefix
	}
	first, after, slash := strings.Cut(prefix, "/")
	if slash && isHost(first) {
		return fullName(first, after)
	}
	return fullName("", prefix)
}
