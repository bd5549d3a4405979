//go:build linux

package image

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// LocalPrefix is the prefix of the names of images that exist in stores only and that
// Get never pulls.
const LocalPrefix = "atoll-local/"

// A sourceKind says where an image comes from.
type sourceKind int

const (
	fromRegistry sourceKind = iota
	fromStore               // never pulled
	fromLayout
	fromArchive
	fromDir
)

// A reference is a parsed name of an image.
type reference struct {
	kind sourceKind
	text string // normalised; equal for all spellings of one reference

	remote name.Reference // fromRegistry
	digest v1.Hash        // fromRegistry by digest, fromStore by digest; else zero
	path   string         // fromLayout, fromArchive, fromDir
	tag    string         // fromLayout, fromArchive; may be empty
}

// parseReference parses the spellings in the package's documentation. Its errors
// are about the spelling; it checks whether a path exists only to distinguish
// spellings.
func parseReference(ref string) (reference, error) {
	scheme, rest, _ := strings.Cut(ref, ":")
	switch {
	case ref == "":
		return reference{}, fmt.Errorf("the name of an image is empty; use one such as python:3.11-slim")
	case strings.HasPrefix(ref, "/"):
		return parsePath(detectSource(ref), ref)
	case scheme == "oci":
		return parsePath(fromLayout, rest)
	case scheme == "docker-archive":
		return parsePath(fromArchive, rest)
	case scheme == "dir":
		return parsePath(fromDir, rest)
	case scheme == "sha256" || scheme == "sha512":
		h, err := v1.NewHash(ref)
		if err != nil {
			return reference{}, fmt.Errorf("digest %q: must be sha256: and 64 hex digits", ref)
		}
		return reference{kind: fromStore, text: ref, digest: h}, nil
	case strings.Contains(ref, "://"):
		return reference{}, fmt.Errorf("remove the %s:// at the beginning", strings.TrimSuffix(scheme, ":"))
	}
	return parseRemote(ref)
}

func parseRemote(ref string) (reference, error) {
	n, err := name.ParseReference(ref)
	if err != nil || !validRepo(n.Context()) {
		return reference{}, fmt.Errorf("not the name of an image: write it like python:3.11-slim or registry.example.com/team/app@sha256:... (lower case)")
	}
	r := reference{kind: fromRegistry, remote: n, text: n.Name()}
	if after, ok := strings.CutPrefix(r.text, name.DefaultRegistry+"/"); ok {
		r.text = "docker.io/" + after
	}
	if strings.HasPrefix(ref, LocalPrefix) {
		r.kind = fromStore
		r.text = LocalPrefix + strings.TrimPrefix(r.text, "docker.io/"+LocalPrefix)
	}
	if d, ok := n.(name.Digest); ok {
		r.digest, err = v1.NewHash(d.DigestStr())
	}
	return r, err
}

// validRepo reports whether the name of a repository follows the grammar of OCI, which
// the parser does not check: words of lower-case letters and digits with '.', '_' or
// '-' between, and '/' between words.
func validRepo(repo name.Repository) bool {
	if host := repo.RegistryStr(); !isAlphanumeric(host[0]) && host[0] != '[' {
		return false
	}
	for word := range strings.SplitSeq(repo.RepositoryStr(), "/") {
		if word == "" || !isAlphanumeric(word[0]) || !isAlphanumeric(word[len(word)-1]) {
			return false
		}
	}
	return true
}

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func parsePath(kind sourceKind, text string) (reference, error) {
	path, tag := text, ""
	if kind != fromDir {
		path, tag = splitTag(text)
	}
	if !filepath.IsAbs(path) {
		return reference{}, fmt.Errorf("path %q: must be absolute", path)
	}
	path = filepath.Clean(path)
	scheme := map[sourceKind]string{fromLayout: "oci:", fromArchive: "docker-archive:", fromDir: "dir:"}[kind]
	r := reference{kind: kind, text: scheme + path, path: path, tag: tag}
	if tag != "" {
		r.text += ":" + tag
	}
	return r, nil
}

// splitTag splits "/path:tag" at the first colon after the path of an existing file,
// as both halves may contain colons.
func splitTag(text string) (path, tag string) {
	if _, err := os.Stat(text); err == nil {
		return text, ""
	}
	for i, c := range text {
		if c != ':' {
			continue
		}
		if _, err := os.Stat(text[:i]); err == nil {
			return text[:i], text[i+1:]
		}
	}
	return text, ""
}

// detectSource returns the kind of the image at a path without a scheme.
func detectSource(text string) sourceKind {
	path, tag := splitTag(text)
	fi, err := os.Stat(path)
	if err == nil && !fi.IsDir() {
		return fromArchive
	}
	if _, err := os.Stat(filepath.Join(path, "oci-layout")); err == nil {
		return fromLayout
	}
	if tag != "" {
		return fromLayout // openLayout reports that it is missing
	}
	return fromDir
}
