package atoll

import (
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A WorkspaceRef says which workspace a sandbox works on.
type WorkspaceRef struct {
	// Name is that of a workspace of the sandbox's project.
	Name string `json:"name,omitempty"`
	// Source, in place of Name, is that of a workspace that is added if there is
	// none; see WorkspaceSpec. A Status has its name.
	Source string `json:"source,omitempty"`
	// Commit is one that the workspace's history has, all of its digits. Empty
	// means the one that the workspace is at.
	Commit string `json:"commit,omitempty"`
	// ReadOnly keeps the sandbox from writing to what is used in place.
	ReadOnly bool `json:"read_only,omitempty"`
}

// valid reports what is wrong with r.
func (r WorkspaceRef) valid() error {
	switch {
	case r == (WorkspaceRef{}):
		return nil
	case (r.Name == "") == (r.Source == ""):
		return fmt.Errorf("workspace: give either its name or a source")
	case r.Source != "":
		if err := CheckSource(r.Source); err != nil {
			return err
		}
	case !ValidName(r.Name):
		return fmt.Errorf("workspace %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", r.Name)
	}
	if r.Commit != "" && !commitID.MatchString(r.Commit) {
		return fmt.Errorf("workspace commit %q: write all of its digits, in lower case", r.Commit)
	}
	return nil
}

var (
	commitID = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)
	// scpSource is ssh's short form, in which no colon follows a slash.
	scpSource = regexp.MustCompile(`^([A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9_.-]*:[^:]`)
)

// CheckSource returns what is wrong with the source of a workspace. The error doesn't repeat the
// source where that may hold a password.
func CheckSource(s string) error {
	form := "write it like /path/of/a/directory, https://host/repository.git or user@host:repository"
	if !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
		return fmt.Errorf("source: must be UTF-8 without control characters")
	}
	if path.IsAbs(s) {
		return nil
	}
	if !strings.Contains(s, "://") {
		if scpSource.MatchString(s) {
			return nil
		}
		return fmt.Errorf("source: %s", form)
	}
	u, err := url.Parse(s)
	if err != nil {
		return fmt.Errorf("source: no URL: %s", form)
	}
	if _, password := u.User.Password(); password || u.User != nil && u.Scheme != "ssh" || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("source: no user, password or query may be in it: have git know them, by a credential helper or an SSH agent")
	}
	switch u.Scheme {
	case "https", "http", "ssh", "git":
		if u.Hostname() == "" || strings.HasPrefix(u.Host, "-") || strings.HasPrefix(u.User.Username(), "-") {
			return fmt.Errorf("source %q: there is no host in it: %s", s, form)
		}
	case "file":
		if u.Host != "" || !path.IsAbs(u.Path) {
			return fmt.Errorf("source %q: write it like file:///path/of/a/repository", s)
		}
	default:
		return fmt.Errorf("source %q: use https, http, ssh, git or file", s)
	}
	return nil
}
