package atoll

import (
	"fmt"
	"io/fs"
	"maps"
	"math"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Defaults that hold for every provider.
const (
	DefaultWorkdir     = "/work"
	DefaultOutputLimit = 1 << 20 // bytes kept of each output stream of a process, for those who attach late
	DefaultStopGrace   = 10 * time.Second
	AutoRemoveLinger   = 10 * time.Second // how long an AutoRemove sandbox outlives its main process, so that its last output can be read
)

// A Spec says what a caller asks for when a sandbox is made. It is pure data,
// JSON both ways; every string in it is UTF-8 without a NUL byte. The zero Spec
// is valid: an idle sandbox of the provider's default image with no network.
//
// A provider refuses with ErrUnsupported what its Caps say it cannot do and
// the Spec asks for; it never ignores a wish silently.
type Spec struct {
	// ID is a UUID, with or without hyphens; kept as 32 lower-case hex digits.
	// Empty means a random one. Making a sandbox with the id of a removed one
	// gives it the data volume that was kept.
	ID string `json:"id,omitempty"`
	// Name is unique in its project; see ValidName. Empty means none.
	Name string `json:"name,omitempty"`
	// Project is the isolation and sharing group. Empty means DefaultProject.
	Project string `json:"project,omitempty"`
	// Labels are the caller's own; keys that begin with "atoll" are refused.
	Labels map[string]string `json:"labels,omitempty"`
	// Provider names the one of several providers that makes the sandbox, and
	// has it ever after. Empty means the default one.
	Provider string `json:"provider,omitempty"`

	// Image names the root file system. Empty means the provider's default;
	// gVisor's is "host". Of an image's own settings its environment and user
	// count; what it would run, and where, is Cmd's and Workdir's to say.
	Image string `json:"image,omitempty"`
	// Cmd is the main process, found again under the id MainProcess. Its exit
	// stops the sandbox. Empty means an idle init that never exits.
	Cmd []string `json:"cmd,omitempty"`
	// Env holds "KEY=value" pairs for every process. The caller's own
	// environment is never inherited.
	Env []string `json:"env,omitempty"`
	// Workdir is the directory that processes start in, made if missing. Empty
	// means DefaultWorkdir, which is where the sandbox's data volume is mounted.
	Workdir string `json:"workdir,omitempty"`
	// User is a name, a numeric "UID" or "UID:GID". Empty means the image's,
	// else root.
	User string `json:"user,omitempty"`
	// TTY gives the main process a terminal of this size.
	TTY *Size `json:"tty,omitempty"`
	// OpenStdin keeps the main process's stdin open for those who attach;
	// otherwise it reads end of file.
	OpenStdin bool `json:"open_stdin,omitempty"`

	// Workspace is what the sandbox works on. A directory that is used in place
	// is mounted at WorkspaceDir, which then is the default of Workdir. A
	// repository is checked out into DefaultWorkdir before the sandbox first
	// starts, unless its data volume is one that was kept and has files. In the
	// environment ATOLL_WORKSPACE says where it is, ATOLL_WORKSPACE_NAME,
	// _SOURCE and _COMMIT what it is.
	Workspace WorkspaceRef `json:"workspace,omitzero"`

	Mounts       []Mount   `json:"mounts,omitempty"`
	Resources    Resources `json:"resources,omitzero"`
	Network      Network   `json:"network,omitzero"`
	Ports        []Port    `json:"ports,omitempty"`
	ReadOnlyRoot bool      `json:"read_only_root,omitempty"`

	// Cache makes the cache directories in the home directory of User lead to
	// the project's cache volume, which all its sandboxes with a Cache share, each
	// with those of the same user; see CacheDirs. What is in such a directory
	// before the sandbox starts is left alone. One sandbox uses what another has
	// left there: the project is the wall.
	Cache bool `json:"cache,omitempty"`
	// CachePaths are more directories to treat so, relative to the home
	// directory.
	CachePaths []string `json:"cache_paths,omitempty"`

	// TTL removes the sandbox that long after it was made, whatever it does,
	// data volume included, unless Extend gives it more. 0 means never.
	TTL Duration `json:"ttl,omitzero"`
	// IdleStop stops the sandbox, as Stop does, when for so long nobody has used
	// it: no process ran in it, and no call was made to it. 0 means
	// DefaultIdleStop where Caps.IdleStop, and Never lifts it.
	IdleStop Duration `json:"idle_stop,omitzero"`
	// IdleRemove removes it then, data volume included, instead of stopping it.
	IdleRemove bool `json:"idle_remove,omitempty"`
	// AutoRemove removes the sandbox, data volume included, AutoRemoveLinger
	// after its main process ended. The main process's output is kept from its
	// first byte for whoever attaches within AutoRemoveLinger of its start.
	AutoRemove bool `json:"auto_remove,omitempty"`
	// NoStart leaves the sandbox in StateCreated.
	NoStart bool `json:"no_start,omitempty"`
	// Snapshot is the id of a snapshot to start from, instead of an image.
	Snapshot string `json:"snapshot,omitempty"`
}

// DefaultProject is the project of a Spec that names none.
const DefaultProject = "default"

// A Size is that of a terminal, in character cells.
type Size struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// MountType says what is mounted.
type MountType string

// The types of mount.
const (
	MountBind   MountType = "bind"   // a directory or file of the machine that runs the provider
	MountVolume MountType = "volume" // a named volume of the project, no sandbox's own; made when missing, kept by Remove
	MountTmpfs  MountType = "tmpfs"  // memory, gone with the sandbox
)

// A Mount adds something to a sandbox's file system.
type Mount struct {
	Type     MountType `json:"type"`
	Source   string    `json:"source,omitempty"` // bind: absolute path; volume: its name; tmpfs: empty
	Target   string    `json:"target"`           // absolute path inside
	ReadOnly bool      `json:"read_only,omitempty"`
	Size     Bytes     `json:"size,omitzero"` // tmpfs only; 0 means 64 MiB
}

// Resources are upper limits, and the GPUs that a sandbox has. Zero means the
// provider's default, which always is a limit where the provider can enforce
// one; Unlimited lifts it.
type Resources struct {
	Memory    Bytes   `json:"memory,omitzero"`    // default 2 GiB
	CPUs      float64 `json:"cpus,omitempty"`     // default: all of the machine's
	Processes int     `json:"processes,omitzero"` // default 1024
	Disk      Bytes   `json:"disk,omitzero"`      // of what is written outside of volumes; default 4 GiB
	GPUs      GPUs    `json:"gpus,omitempty"`     // default none
}

// Unlimited lifts a limit of Resources.
const Unlimited = -1

// Default limits, for providers that can enforce them.
const (
	DefaultMemory    Bytes = 2 << 30
	DefaultProcesses       = 1024
	DefaultDisk      Bytes = 4 << 30
)

// WithDefaults returns r with its zero fields replaced by the defaults.
func (r Resources) WithDefaults() Resources {
	if r.Memory == 0 {
		r.Memory = DefaultMemory
	}
	if r.Processes == 0 {
		r.Processes = DefaultProcesses
	}
	if r.Disk == 0 {
		r.Disk = DefaultDisk
	}
	return r
}

// Clone returns a copy of s that shares nothing with it.
func (s *Spec) Clone() *Spec {
	c := *s
	c.Labels = maps.Clone(s.Labels)
	c.Cmd = slices.Clone(s.Cmd)
	c.Env = slices.Clone(s.Env)
	c.Mounts = slices.Clone(s.Mounts)
	c.Ports = slices.Clone(s.Ports)
	c.Network.Allow = slices.Clone(s.Network.Allow)
	c.CachePaths = slices.Clone(s.CachePaths)
	if s.TTY != nil {
		size := *s.TTY
		c.TTY = &size
	}
	return &c
}

// WithDefaults returns a clone of s in which the defaults that do not depend on
// the provider are filled in and the id is normalised or drawn. Call Validate
// first.
func (s *Spec) WithDefaults() *Spec {
	c := s.Clone()
	if id, err := NormalizeID(c.ID); err == nil {
		c.ID = id
	}
	if c.ID == "" {
		c.ID = NewID()
	}
	if c.Project == "" {
		c.Project = DefaultProject
	}
	if c.Workdir == "" {
		c.Workdir = DefaultWorkdir
	}
	if c.Network.Mode == "" {
		c.Network.Mode = NetworkNone
	}
	return c
}

// MadeBy is WithDefaults for the provider called name, which the result names.
// Kinds: ErrInvalid (s names another one).
func (s *Spec) MadeBy(name string) (*Spec, error) {
	if s.Provider != "" && s.Provider != name {
		return nil, Errorf("create", s.Name, ErrInvalid, "provider %q not found: there is %s", s.Provider, name)
	}
	c := s.WithDefaults()
	c.Provider = name
	return c, nil
}

// Validate reports the first thing in s that no provider could make sense of,
// as an ErrInvalid that says what to write instead.
func (s *Spec) Validate() error {
	bad := func(format string, args ...any) error {
		return Errorf("create", s.Name, ErrInvalid, format, args...)
	}
	if s.ID != "" {
		if _, err := NormalizeID(s.ID); err != nil {
			return bad("%w", err)
		}
	}
	for _, n := range []struct{ what, name string }{{"name", s.Name}, {"project", s.Project}, {"provider", s.Provider}} {
		if n.name != "" && !ValidName(n.name) {
			return bad("%s %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", n.what, n.name)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(s.Labels)) {
		if k == "" || strings.HasPrefix(k, "atoll") {
			return bad("label %q: keys must not be empty or begin with \"atoll\"", k)
		}
	}
	if err := validEnv(s.Env); err != nil {
		return bad("%w", err)
	}
	if len(s.Cmd) > 0 && s.Cmd[0] == "" {
		return bad("the command is empty")
	}
	if s.Workdir != "" && (!path.IsAbs(s.Workdir) || path.Clean(s.Workdir) == "/") {
		return bad("workdir %q: must be an absolute path other than /", s.Workdir)
	}
	if err := validUser(s.User); err != nil {
		return bad("%w", err)
	}
	if err := s.validMounts(); err != nil {
		return bad("%w", err)
	}
	if err := s.Workspace.valid(); err != nil {
		return bad("%w", err)
	}
	if err := s.Resources.valid(); err != nil {
		return bad("%w", err)
	}
	if err := s.validNetwork(); err != nil {
		return bad("%w", err)
	}
	if err := s.validCache(); err != nil {
		return bad("%w", err)
	}
	if s.TTL < 0 {
		return bad("ttl %s: must not be negative", s.TTL)
	}
	if s.IdleStop < Never {
		return bad("idle_stop %s: must not be negative", s.IdleStop)
	}
	if s.IdleRemove && s.IdleStop == Never {
		return bad("idle_remove needs an idle_stop to end")
	}
	if s.AutoRemove && len(s.Cmd) == 0 {
		return bad("auto_remove needs a cmd whose end it can wait for")
	}
	if s.Snapshot != "" && s.Image != "" {
		return bad("snapshot %s brings its own image: leave image empty", s.Snapshot)
	}
	if err := s.validText(); err != nil {
		return bad("%w", err)
	}
	return nil
}

// validText refuses strings that do not survive JSON, or a system call.
func (s *Spec) validText() (first error) {
	check := func(what string, texts ...string) {
		for _, text := range texts {
			switch {
			case first != nil:
			case !utf8.ValidString(text):
				first = fmt.Errorf("%s %q: must be UTF-8", what, text)
			case strings.ContainsRune(text, 0):
				first = fmt.Errorf("%s %q: contains a NUL byte", what, text)
			}
		}
	}
	for _, k := range slices.Sorted(maps.Keys(s.Labels)) {
		check("label", k, s.Labels[k])
	}
	check("image", s.Image)
	check("argument", s.Cmd...)
	for _, kv := range s.Env {
		if k, _, _ := strings.Cut(kv, "="); first == nil && !utf8.ValidString(kv) {
			first = fmt.Errorf("environment %q: must be UTF-8", k) // without its value, as in validEnv
		}
	}
	check("workdir", s.Workdir)
	check("user", s.User)
	for _, m := range s.Mounts {
		check("mount source", m.Source)
		check("mount target", m.Target)
	}
	check("network", s.Network.Name)
	check("allow", s.Network.Allow...)
	check("cache path", s.CachePaths...)
	check("gpus", string(s.Resources.GPUs))
	for _, p := range s.Ports {
		check("port", p.Name)
	}
	check("snapshot", s.Snapshot)
	return first
}

// valid names the first limit that is none.
func (r Resources) valid() error {
	for _, l := range []struct {
		name string
		n    float64
	}{
		{"memory", float64(r.Memory)}, {"cpus", r.CPUs}, {"processes", float64(r.Processes)}, {"disk", float64(r.Disk)},
	} {
		if !(l.n >= 0 && l.n <= math.MaxFloat64) && l.n != Unlimited { // NaN is neither
			return fmt.Errorf("%s %v: must be positive, 0 for the default or -1 for no limit", l.name, l.n)
		}
	}
	_, _, err := r.GPUs.Devices()
	return err
}

func (s *Spec) validMounts() error {
	seen := map[string]bool{}
	for _, m := range s.Mounts {
		target := path.Clean(m.Target)
		if !path.IsAbs(m.Target) || target == "/" {
			return fmt.Errorf("mount target %q: must be an absolute path other than /", m.Target)
		}
		if seen[target] {
			return fmt.Errorf("mount target %q: named twice", m.Target)
		}
		seen[target] = true
		switch {
		case m.Type == MountBind && !path.IsAbs(m.Source):
			return fmt.Errorf("mount source %q: must be an absolute path", m.Source)
		case m.Type == MountVolume && !ValidName(m.Source):
			return fmt.Errorf("volume name %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", m.Source)
		case m.Type == MountTmpfs && m.Source != "":
			return fmt.Errorf("mount %q: a tmpfs has no source", m.Target)
		case m.Type != MountBind && m.Type != MountVolume && m.Type != MountTmpfs:
			return fmt.Errorf("mount type %q: use bind, volume or tmpfs", m.Type)
		case m.Size < 0 || m.Size > 0 && m.Type != MountTmpfs:
			return fmt.Errorf("mount %q: size is for tmpfs only and must not be negative", m.Target)
		}
	}
	return nil
}

// validEnv shows no value, which may be a secret, and errors are kept.
func validEnv(env []string) error {
	for i, kv := range env {
		switch k, _, ok := strings.Cut(kv, "="); {
		case !ok || k == "":
			return fmt.Errorf("environment: entry %d must be KEY=value", i+1)
		case strings.ContainsRune(kv, 0):
			return fmt.Errorf("environment %q: must be KEY=value without a NUL byte", k)
		}
	}
	return nil
}

func validUser(user string) error {
	if strings.ContainsAny(user, "\x00/ \n") || strings.HasPrefix(user, ":") || strings.HasSuffix(user, ":") {
		return fmt.Errorf("user %q: use a name, UID or UID:GID", user)
	}
	return nil
}

// CacheVolume is the name of each project's cache volume, which no other volume
// can have. It is made with the first sandbox that has a Spec.Cache, and
// RemoveVolume empties the cache, by removing it, when no such sandbox is left.
const CacheVolume = ".cache"

// CacheDirs lists the directories, relative to a user's home directory, that
// lead to the cache of a sandbox with Spec.Cache: those in which package
// managers, compilers and editors keep what they can fetch again.
func CacheDirs() []string { return slices.Clone(cacheDirs) }

var cacheDirs = []string{
	".bun/install/cache", ".bundle", ".cache", ".cargo/git", ".cargo/registry", ".ccache", ".composer/cache",
	".cursor-server", ".gem", ".gradle/caches", ".gradle/wrapper", ".local/share/uv", ".m2/repository", ".npm",
	".nuget/packages", ".pnpm-store", ".vscode-server", ".yarn", ".zed_server", "go/pkg/mod",
}

// ValidCachePath reports whether path can be one of Spec.CachePaths: relative,
// with slashes, below the directory that it is relative to, and without "." or
// "..".
func ValidCachePath(path string) bool { return fs.ValidPath(path) && path != "." }

func (s *Spec) validCache() error {
	if len(s.CachePaths) > 0 && !s.Cache {
		return fmt.Errorf("cache paths need cache")
	}
	for _, p := range s.CachePaths {
		if !ValidCachePath(p) {
			return fmt.Errorf("cache path %q: must be relative to the home directory, without \"..\", like .tool/cache", p)
		}
	}
	return nil
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
