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

// Images says which image stands for a runtime. The zero value has the usual
// ones, and allows every image of a registry:
//
//	linux, bash, shell, ""  ubuntu:22.04
//	python                  python:3.11-slim
//	node                    node:20-slim
//
// Anything else is an image itself. One that is called like a shortcut is
// written with its tag: node:latest.
type Images struct {
	// Shortcuts are images by name, in place of the usual ones and besides
	// them: "linux": "host". Names are taken as they are written; bash, shell
	// and "" are those of linux unless they are there themselves.
	Shortcuts map[string]string

	// Allow lists the images that may be used, or what their names begin with,
	// followed by "*": python:3.11-slim, ghcr.io/acme/*. It is compared with
	// what a shortcut stands for, and by whole names: docker.io/library/golang:1
	// is golang:1. The tag of an image that has a digest too does not count.
	// Empty means every image but paths of this machine: those must stand here
	// as they are, or be what a shortcut stands for.
	Allow []string
}

// Check reports all shortcuts and patterns that make no sense, as ErrInvalid.
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

// Resolve gives the image for a runtime, as it is to be asked for. What can be
// none is ErrInvalid; what is not allowed is ErrDenied, and the error lists
// what is.
func (im Images) Resolve(runtime string) (string, error) {
	ref, short := im.shortcut(runtime)
	if !short {
		ref = runtime
		if err := checkReference(ref); err != nil {
			return "", atoll.Errorf("image", "", atoll.ErrInvalid, "%.60q: %w", ref, err)
		}
	}
	switch {
	case len(im.Allow) > 0 && !slices.ContainsFunc(im.Allow, func(p string) bool { return matches(p, ref) }):
		return "", atoll.Errorf("image", "", atoll.ErrDenied, "%s: not allowed here: use one of %s", ref, strings.Join(im.Allow, ", "))
	case len(im.Allow) == 0 && !short && isPath(ref):
		return "", atoll.Errorf("image", "", atoll.ErrDenied, "%s: paths of this machine are not allowed here: use linux, python, node or an image of a registry", ref)
	}
	return ref, nil
}

func (im Images) shortcut(runtime string) (ref string, ok bool) {
	if ref, ok := im.Shortcuts[runtime]; ok {
		return ref, true
	}
	switch runtime {
	case "", "bash", "shell":
		return im.shortcut("linux")
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
	hostImage   = "host"         // this machine's programs, where the provider can show them
	localPrefix = "atoll-local/" // begins the names of images that no registry has
	hub         = "docker.io"
)

// A reference is the name of an image in a registry, in its parts.
type reference struct {
	host, path, tag, digest string
}

var (
	hostForm   = form(`^(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?$`)
	pathForm   = form(`^[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*)*$`)
	tagForm    = form(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
	digestForm = form(`^(?:sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$`)
	idForm     = form(`^[0-9a-f]{64}$`)
)

// form compiles an expression when it is first used: most programs that import this
// package never do.
func form(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// maxName is the length of a whole name without tag and digest that registries
// take.
const maxName = 255

// parseReference splits the name of an image as registries' clients do: what
// stands before the first slash is a host when no part of a path could look
// like it.
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
		!idForm().MatchString(rest) // which engines take for an image's id
	return ref, ok
}

func isHost(first string) bool {
	return strings.ContainsAny(first, ".:") || first == "localhost" || strings.ToLower(first) != first
}

// full is the one way to write what ref means.
func (ref reference) full() string {
	name := fullName(ref.host, ref.path)
	switch {
	case ref.digest != "":
		return name + "@" + ref.digest // the tag is not looked at then
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

// OfMachine reports whether an image is this machine's alone: its own programs, those in
// a directory or an archive, and what was only given a name here.
func OfMachine(ref string) bool {
	return ref == hostImage || isPath(ref) || strings.HasPrefix(ref, localPrefix)
}

// isPath reports whether ref is that of an image in a directory or an archive.
func isPath(ref string) bool {
	for _, scheme := range []string{"/", "dir:/", "oci:/", "docker-archive:/"} {
		if strings.HasPrefix(ref, scheme) {
			return true
		}
	}
	return false
}

// checkReference says what to write instead of what cannot be an image.
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

// checkPattern says what to write instead of a pattern that cannot mean
// anything, or not what it looks like.
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

// matches reports whether pattern is ref, or the beginning of it. Both are
// compared in full, so that what looks like a name on Docker Hub ("python:*")
// does not let in a registry that is called so ("python:5000/x").
func matches(pattern, ref string) bool {
	prefix, open := strings.CutSuffix(pattern, "*")
	switch {
	case checkPattern(pattern) != nil:
		return false
	case !open:
		return normal(pattern) == normal(ref)
	case isPath(ref):
		return false
	case prefix == "":
		return true
	case ref == hostImage, digestForm().MatchString(ref):
		return false // neither has a registry
	}
	return strings.HasPrefix(normal(ref), normalPrefix(prefix))
}

func normal(ref string) string {
	if ref == hostImage || isPath(ref) || digestForm().MatchString(ref) {
		return ref
	}
	r, _ := parseReference(ref)
	full := r.full()
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
