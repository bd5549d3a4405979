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

// A Manager is a Provider with Caps.Workspaces. It manages the workspaces that Spec.Workspace
// names.
type Manager interface {
	// Workspaces lists the workspaces of a project, or of all projects if project is "", sorted
	// by project and name.
	Workspaces(ctx context.Context, project string) ([]Workspace, error)

	// AddWorkspace adds a workspace, and returns when it is ready. ctx bounds the call, including
	// the clone. A workspace whose clone failed remains in StateError until it is removed or
	// added again. progress may be nil; AddWorkspace calls it from one goroutine at a time.
	// Kinds: ErrInvalid, ErrAlreadyExists, ErrNotExist (source or revision), ErrDenied (missing
	// or wrong credentials), ErrUnavailable, ErrExhausted, ErrTimeout.
	AddWorkspace(ctx context.Context, spec *Spec, progress func(atoll.Progress)) (Workspace, error)

	// UpdateWorkspace fetches the commit that the revision of a workspace names now, for
	// sandboxes created from then on. If it fails, the workspace does not change. Kinds: those of
	// AddWorkspace.
	UpdateWorkspace(ctx context.Context, project, name string, progress func(atoll.Progress)) (Workspace, error)

	// RemoveWorkspace removes a workspace and deletes its clone. It does not touch a directory
	// used in place. Kinds: ErrNotExist, ErrConflict (in use by a sandbox, or being cloned).
	RemoveWorkspace(ctx context.Context, project, name string) error
}

// Dir is the directory in a sandbox at which a workspace used in place is mounted.
const Dir = "/workspace"

// Environment variables in every process of a sandbox with a workspace: the directory of the
// workspace in the sandbox, its source, and the commit of a git workspace.
const (
	Var       = "ATOLL_WORKSPACE"
	SourceVar = "ATOLL_WORKSPACE_SOURCE"
	CommitVar = "ATOLL_WORKSPACE_COMMIT"
)

// A Spec describes a workspace.
type Spec struct {
	Project string `json:"project,omitempty"` // DefaultProject when empty
	Name    string `json:"name"`              // unique in its project; see ValidName
	// Source is the absolute path of a directory on the machine of the provider, which sandboxes
	// use in place; or the address of a git repository, which is cloned: https, http, ssh, git or
	// file, or host:path for ssh. With a Revision, a path denotes a repository, too. Source must
	// not contain a password; configure git on that machine instead.
	Source string `json:"source"`
	// Revision is a branch, a tag, or a full commit id. Empty means the default branch of the
	// repository.
	Revision string `json:"revision,omitempty"`
	// ReadOnly prevents sandboxes from writing to a directory used in place.
	ReadOnly bool `json:"read_only,omitempty"`
}

// A Type is the way in which sandboxes get a workspace.
type Type string

// The types of workspaces.
const (
	TypeLocal Type = "local" // a directory used in place, mounted at Dir
	TypeGit   Type = "git"   // a repository; each sandbox has a check-out in its work directory
)

// Type returns TypeLocal for an absolute path without a revision, or else TypeGit.
func (s *Spec) Type() Type {
	if path.IsAbs(s.Source) && s.Revision == "" {
		return TypeLocal
	}
	return TypeGit
}

// A State is the state of a workspace.
type State string

// The states of workspaces.
const (
	StateInitializing State = "initializing" // not cloned yet; the next use clones it
	StateCloning      State = "cloning"
	StateReady        State = "ready"
	StateError        State = "error" // see Workspace.Error; the next use tries again
)

// A Workspace is a directory or a repository that sandboxes of a project work on.
type Workspace struct {
	Project  string    `json:"project"`             // the project that it belongs to
	Name     string    `json:"name"`                // unique within the project
	Type     Type      `json:"type"`                // whether it is a directory or a clone
	Source   string    `json:"source"`              // the directory on the server, or the URL of the repository
	Revision string    `json:"revision,omitempty"`  // the branch, tag or commit of the clone
	ReadOnly bool      `json:"read_only,omitempty"` // sandboxes cannot change it
	State    State     `json:"state"`               // whether it can be used
	Commit   string    `json:"commit,omitempty"`    // the commit that new sandboxes get; only for TypeGit
	Error    string    `json:"error,omitempty"`     // of the last failed clone or update
	Progress string    `json:"progress,omitempty"`  // of a clone or update
	InUse    bool      `json:"in_use"`              // a sandbox with this workspace exists
	Created  time.Time `json:"created"`             // when it was added
	Updated  time.Time `json:"updated,omitzero"`    // when Commit last changed
}

// List lists the workspaces of a project, or of all projects if project is "".
func List(ctx context.Context, p atoll.Provider, project string) ([]Workspace, error) {
	if s, ok := atoll.As[Manager](p); ok {
		return s.Workspaces(ctx, project)
	}
	return nil, atoll.E("workspaces", p.Info().Name, atoll.ErrUnsupported, nil)
}

// Add adds a workspace; see Manager.AddWorkspace.
func Add(ctx context.Context, p atoll.Provider, spec *Spec, progress func(atoll.Progress)) (Workspace, error) {
	if s, ok := atoll.As[Manager](p); ok {
		return s.AddWorkspace(ctx, spec, progress)
	}
	return Workspace{}, atoll.E("add workspace", spec.Name, atoll.ErrUnsupported, nil)
}

// Update updates a workspace; see Manager.UpdateWorkspace.
func Update(ctx context.Context, p atoll.Provider, project, name string, progress func(atoll.Progress)) (Workspace, error) {
	if s, ok := atoll.As[Manager](p); ok {
		return s.UpdateWorkspace(ctx, project, name, progress)
	}
	return Workspace{}, atoll.E("update workspace", name, atoll.ErrUnsupported, nil)
}

// Remove removes a workspace; see Manager.RemoveWorkspace.
func Remove(ctx context.Context, p atoll.Provider, project, name string) error {
	if s, ok := atoll.As[Manager](p); ok {
		return s.RemoveWorkspace(ctx, project, name)
	}
	return atoll.E("remove workspace", name, atoll.ErrUnsupported, nil)
}

// Validate returns an ErrInvalid for the first invalid field of s. The message says how to fix
// it.
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
		return bad("read_only: not available for git repositories, of which each sandbox has its own copy")
	}
	return nil
}

// checkRevision rejects revisions that git would not take as a name.
func checkRevision(s string) error {
	if strings.HasPrefix(s, "-") || strings.Contains(s, "..") || strings.Contains(s, "@{") || !utf8.ValidString(s) ||
		strings.ContainsFunc(s, func(r rune) bool {
			return unicode.IsSpace(r) || unicode.IsControl(r) || strings.ContainsRune(`~^:?*[\`, r)
		}) {
		return fmt.Errorf("revision %q: use a branch, a tag or a full commit id", s)
	}
	return nil
}
