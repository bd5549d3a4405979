package atoll

import (
	"context"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// WorkspaceDir is where sandboxes find a workspace that is used in place.
const WorkspaceDir = "/.workspace"

// The environment variables in which every process of a sandbox that has a workspace
// finds where that is, what it is a copy of, or is itself, and the commit of a copy.
const (
	WorkspaceVar       = "ATOLL_WORKSPACE"
	WorkspaceSourceVar = "ATOLL_WORKSPACE_SOURCE"
	WorkspaceCommitVar = "ATOLL_WORKSPACE_COMMIT"
)

// A WorkspaceSpec says what a workspace is made of.
type WorkspaceSpec struct {
	Project string `json:"project,omitempty"` // DefaultProject when empty
	Name    string `json:"name"`              // unique in its project; see ValidName
	// Source is the absolute path of a directory of the machine that keeps the
	// workspace, used in place; or the address of a git repository, which is
	// cloned: https, http, ssh, git or file, or host:path for ssh. With a
	// Revision a path is that of a repository, too. There are no passwords in
	// it: they are for git to know on that machine.
	Source string `json:"source"`
	// Revision is a branch, a tag, or all digits of a commit. Empty means the
	// branch that the repository presents.
	Revision string `json:"revision,omitempty"`
	// ReadOnly keeps sandboxes from writing to what is used in place.
	ReadOnly bool `json:"read_only,omitempty"`
}

// A WorkspaceType says how sandboxes get a workspace.
type WorkspaceType string

// The types of workspace.
const (
	WorkspaceLocal WorkspaceType = "local" // a directory that is used in place, mounted at WorkspaceDir
	WorkspaceGit   WorkspaceType = "git"   // a repository, of which each sandbox has a check-out in its work directory
)

// Type is local for an absolute path without a revision.
func (s *WorkspaceSpec) Type() WorkspaceType {
	if path.IsAbs(s.Source) && s.Revision == "" {
		return WorkspaceLocal
	}
	return WorkspaceGit
}

// A WorkspaceState is where a workspace is on its way.
type WorkspaceState string

// The states of workspaces.
const (
	WorkspaceInitializing WorkspaceState = "initializing" // not cloned yet; the next use does it
	WorkspaceCloning      WorkspaceState = "cloning"
	WorkspaceReady        WorkspaceState = "ready"
	WorkspaceError        WorkspaceState = "error" // Error says why; the next use tries again
)

// A Workspace is what sandboxes of a project work on.
type Workspace struct {
	Project  string         `json:"project"`
	Name     string         `json:"name"`
	Type     WorkspaceType  `json:"type"`
	Source   string         `json:"source"`
	Revision string         `json:"revision,omitempty"`
	ReadOnly bool           `json:"read_only,omitempty"`
	State    WorkspaceState `json:"state"`
	Commit   string         `json:"commit,omitempty"`   // that new sandboxes get; only of a git one
	Error    string         `json:"error,omitempty"`    // of the last attempt to clone or update it
	Progress string         `json:"progress,omitempty"` // of cloning or updating it
	InUse    bool           `json:"in_use"`             // a sandbox was made with it
	Created  time.Time      `json:"created"`
	Updated  time.Time      `json:"updated,omitzero"` // when it came to its commit
}

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

// Workspaces lists the workspaces of a project, or of all when it is "".
func Workspaces(ctx context.Context, p Provider, project string) ([]Workspace, error) {
	if s, ok := As[WorkspaceStore](p); ok {
		return s.Workspaces(ctx, project)
	}
	return nil, E("workspaces", p.Info().Name, ErrUnsupported, nil)
}

// AddWorkspace makes a workspace.
func AddWorkspace(ctx context.Context, p Provider, spec *WorkspaceSpec, progress func(Progress)) (Workspace, error) {
	if s, ok := As[WorkspaceStore](p); ok {
		return s.AddWorkspace(ctx, spec, progress)
	}
	return Workspace{}, E("add workspace", spec.Name, ErrUnsupported, nil)
}

// UpdateWorkspace brings a workspace up to date.
func UpdateWorkspace(ctx context.Context, p Provider, project, name string, progress func(Progress)) (Workspace, error) {
	if s, ok := As[WorkspaceStore](p); ok {
		return s.UpdateWorkspace(ctx, project, name, progress)
	}
	return Workspace{}, E("update workspace", name, ErrUnsupported, nil)
}

// RemoveWorkspace forgets a workspace of a project.
func RemoveWorkspace(ctx context.Context, p Provider, project, name string) error {
	if s, ok := As[WorkspaceStore](p); ok {
		return s.RemoveWorkspace(ctx, project, name)
	}
	return E("remove workspace", name, ErrUnsupported, nil)
}

// Validate reports the first thing in s that makes no sense, as an ErrInvalid
// that says what to write instead.
func (s *WorkspaceSpec) Validate() error {
	bad := func(format string, args ...any) error {
		return Errorf("add workspace", s.Name, ErrInvalid, format, args...)
	}
	if !ValidName(s.Name) {
		return bad("name %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", s.Name)
	}
	if s.Project != "" && !ValidName(s.Project) {
		return bad("project %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", s.Project)
	}
	if err := validSource(s.Source); err != nil {
		return bad("%w", err)
	}
	if err := validRevision(s.Revision); err != nil {
		return bad("%w", err)
	}
	if s.ReadOnly && s.Type() == WorkspaceGit {
		return bad("read_only: each sandbox has a copy of a git repository, which is its own")
	}
	return nil
}

// valid reports what is wrong with r.
func (r WorkspaceRef) valid() error {
	switch {
	case r == (WorkspaceRef{}):
		return nil
	case (r.Name == "") == (r.Source == ""):
		return fmt.Errorf("workspace: give either its name or a source")
	case r.Source != "":
		if err := validSource(r.Source); err != nil {
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

// validSource never repeats what may hold a password.
func validSource(s string) error {
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

// validRevision refuses what git has another meaning for than a name.
func validRevision(s string) error {
	if strings.HasPrefix(s, "-") || strings.Contains(s, "..") || strings.Contains(s, "@{") || !utf8.ValidString(s) ||
		strings.ContainsFunc(s, func(r rune) bool {
			return unicode.IsSpace(r) || unicode.IsControl(r) || strings.ContainsRune(`~^:?*[\`, r)
		}) {
		return fmt.Errorf("revision %q: write a branch, a tag or all digits of a commit", s)
	}
	return nil
}
