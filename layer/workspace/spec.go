package workspace

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/seed46cd37a8/atoll"
)

// A Manager is a Provider with Caps.Workspaces: it keeps what the
// sandboxes of a project work on, which Spec.Workspace names.
type Manager interface {
	// Workspaces lists the workspaces of a project, or of all when it is "",
	// sorted by project and name.
	Workspaces(ctx context.Context, project string) ([]Workspace, error)

	// AddWorkspace makes a workspace, and returns when it is ready. ctx bounds
	// the call, and the cloning with it. One that fails stays, in the state
	// StateError, until it is removed or added again. progress may be nil;
	// it is called from one goroutine at a time. Kinds: ErrInvalid,
	// ErrAlreadyExists, ErrNotExist (source or revision), ErrDenied (credentials
	// are missing or wrong), ErrUnavailable, ErrExhausted, ErrTimeout.
	AddWorkspace(ctx context.Context, spec *Spec, progress func(atoll.Progress)) (Workspace, error)

	// UpdateWorkspace brings a workspace to the commit that its revision names
	// by now, for sandboxes that are made from then on. When it fails the
	// workspace stays as it is. Kinds: those of AddWorkspace.
	UpdateWorkspace(ctx context.Context, project, name string, progress func(atoll.Progress)) (Workspace, error)

	// RemoveWorkspace forgets a workspace, and deletes its clone. A directory
	// that is used in place is not touched. Kinds: ErrNotExist, ErrConflict (a
	// sandbox was made with it, or it is being cloned).
	RemoveWorkspace(ctx context.Context, project, name string) error
}

// Dir is where sandboxes find a workspace that is used in place.
const Dir = "/.workspace"

// The environment variables in which every process of a sandbox that has a workspace
// finds where that is, what it is a copy of, or is itself, and the commit of a copy.
const (
	Var       = "ATOLL_WORKSPACE"
	SourceVar = "ATOLL_WORKSPACE_SOURCE"
	CommitVar = "ATOLL_WORKSPACE_COMMIT"
)

// A Spec says what a workspace is made of.
type Spec struct {
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

// A Type says how sandboxes get a workspace.
type Type string

// The types of workspace.
const (
	TypeLocal Type = "local" // a directory that is used in place, mounted at Dir
	TypeGit   Type = "git"   // a repository, of which each sandbox has a check-out in its work directory
)

// Type is local for an absolute path without a revision.
func (s *Spec) Type() Type {
	if path.IsAbs(s.Source) && s.Revision == "" {
		return TypeLocal
	}
	return TypeGit
}

// A State is where a workspace is on its way.
type State string

// The states of workspaces.
const (
	StateInitializing State = "initializing" // not cloned yet; the next use does it
	StateCloning      State = "cloning"
	StateReady        State = "ready"
	StateError        State = "error" // Error says why; the next use tries again
)

// A Workspace is what sandboxes of a project work on.
type Workspace struct {
	Project  string    `json:"project"`
	Name     string    `json:"name"`
	Type     Type      `json:"type"`
	Source   string    `json:"source"`
	Revision string    `json:"revision,omitempty"`
	ReadOnly bool      `json:"read_only,omitempty"`
	State    State     `json:"state"`
	Commit   string    `json:"commit,omitempty"`   // that new sandboxes get; only of a git one
	Error    string    `json:"error,omitempty"`    // of the last attempt to clone or update it
	Progress string    `json:"progress,omitempty"` // of cloning or updating it
	InUse    bool      `json:"in_use"`             // a sandbox was made with it
	Created  time.Time `json:"created"`
	Updated  time.Time `json:"updated,omitzero"` // when it came to its commit
}

// List lists the workspaces of a project, or of all when it is "".
func List(ctx context.Context, p atoll.Provider, project string) ([]Workspace, error) {
	if s, ok := atoll.As[Manager](p); ok {
		return s.Workspaces(ctx, project)
	}
	return nil, atoll.E("workspaces", p.Info().Name, atoll.ErrUnsupported, nil)
}

// Add makes a workspace.
func Add(ctx context.Context, p atoll.Provider, spec *Spec, progress func(atoll.Progress)) (Workspace, error) {
	if s, ok := atoll.As[Manager](p); ok {
		return s.AddWorkspace(ctx, spec, progress)
	}
	return Workspace{}, atoll.E("add workspace", spec.Name, atoll.ErrUnsupported, nil)
}

// Update brings a workspace up to date.
func Update(ctx context.Context, p atoll.Provider, project, name string, progress func(atoll.Progress)) (Workspace, error) {
	if s, ok := atoll.As[Manager](p); ok {
		return s.UpdateWorkspace(ctx, project, name, progress)
	}
	return Workspace{}, atoll.E("update workspace", name, atoll.ErrUnsupported, nil)
}

// Remove forgets a workspace of a project.
func Remove(ctx context.Context, p atoll.Provider, project, name string) error {
	if s, ok := atoll.As[Manager](p); ok {
		return s.RemoveWorkspace(ctx, project, name)
	}
	return atoll.E("remove workspace", name, atoll.ErrUnsupported, nil)
}

// Validate reports the first thing in s that makes no sense, as an ErrInvalid
// that says what to write instead.
func (s *Spec) Validate() error {
	bad := func(format string, args ...any) error {
		return atoll.Errorf("add workspace", s.Name, atoll.ErrInvalid, format, args...)
	}
	if !atoll.ValidName(s.Name) {
		return bad("name %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", s.Name)
	}
	if s.Project != "" && !atoll.ValidName(s.Project) {
		return bad("project %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", s.Project)
	}
	if err := atoll.CheckSource(s.Source); err != nil {
		return bad("%w", err)
	}
	if err := checkRevision(s.Revision); err != nil {
		return bad("%w", err)
	}
	if s.ReadOnly && s.Type() == TypeGit {
		return bad("read_only: each sandbox has a copy of a git repository, which is its own")
	}
	return nil
}

// checkRevision refuses what git has another meaning for than a name.
func checkRevision(s string) error {
	if strings.HasPrefix(s, "-") || strings.Contains(s, "..") || strings.Contains(s, "@{") || !utf8.ValidString(s) ||
		strings.ContainsFunc(s, func(r rune) bool {
			return unicode.IsSpace(r) || unicode.IsControl(r) || strings.ContainsRune(`~^:?*[\`, r)
		}) {
		return fmt.Errorf("revision %q: write a branch, a tag or all digits of a commit", s)
	}
	return nil
}
