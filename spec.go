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
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

// Defaults of all providers.
const (
	DefaultWorkdir     = "/work"
	DefaultOutputLimit = 1 << 20 // bytes of each output stream of a process that are retained for later attachments
	DefaultStopGrace   = 10 * time.Second
	AutoRemoveDelay    = 10 * time.Second // time between the end of the main process and the removal of an AutoRemove sandbox, for reading the last output
)

// A Spec is the request for a sandbox. It is pure data and converts to and from JSON. All strings
// in it are UTF-8 without NUL bytes. The zero Spec is valid: an idle sandbox with the provider's
// default image and without a network.
//
// A provider rejects a Spec with ErrUnsupported if the Spec asks for something that the
// provider's Caps exclude. It never ignores a part of a Spec silently.
type Spec struct {
	// ID is a UUID, with or without hyphens; providers store it as 32 lower-case hex digits.
	// Empty means a random id. A sandbox with the id of a removed one gets the data volume that
	// the removed one left.
	ID string `json:"id,omitempty"`
	// Name is unique in its project; see ValidName. Empty means no name.
	Name string `json:"name,omitempty"`
	// Project is the group of sandboxes, volumes and workspaces to which the sandbox belongs.
	// Empty means DefaultProject.
	Project string `json:"project,omitempty"`
	// Labels belong to the caller. Validate rejects keys that begin with "atoll".
	Labels map[string]string `json:"labels,omitempty"`
	// Provider selects the member of a Combiner that creates the sandbox. A sandbox never moves
	// to another provider. Empty means the default provider.
	Provider string `json:"provider,omitempty"`

	// Image is the source of the root file system. Empty means the provider's default image; that
	// of gVisor is "host". The sandbox uses the environment and the user of the image's
	// configuration, but neither its command nor its working directory; see Cmd and Workdir.
	Image string `json:"image,omitempty"`
	// Pull says when the provider asks the registry of Image. Empty means the provider's own policy,
	// which is PullMissing unless somebody configured another one.
	Pull PullPolicy `json:"pull,omitempty"`
	// Cmd is the main process, whose id is MainProcess. The sandbox stops when it exits. Empty
	// means an idle process that never exits.
	Cmd []string `json:"cmd,omitempty"`
	// Env holds "KEY=value" pairs for all processes. Processes never inherit the environment of
	// the caller.
	Env []string `json:"env,omitempty"`
	// Workdir is the directory in which processes start; it is created if missing. Empty means
	// DefaultWorkdir, where the sandbox's data volume is mounted.
	Workdir string `json:"workdir,omitempty"`
	// User is a name, a numeric "UID" or "UID:GID". Empty means the user of the image, or else
	// root.
	User string `json:"user,omitempty"`
	// TTY gives the main process a terminal of this size.
	TTY *Size `json:"tty,omitempty"`
	// OpenStdin leaves the main process's stdin open for later attachments. Otherwise the main
	// process reads end of file.
	OpenStdin bool `json:"open_stdin,omitempty"`

	// Workspace is the workspace that the sandbox works on. A directory used in place is mounted
	// at /workspace, which then becomes the default of Workdir. A repository is checked out
	// into DefaultWorkdir before the first start of the sandbox, unless the data volume remained
	// from an earlier sandbox and has files. The environment variable ATOLL_WORKSPACE holds the
	// path of the workspace in the sandbox; ATOLL_WORKSPACE_NAME, ATOLL_WORKSPACE_SOURCE and
	// ATOLL_WORKSPACE_COMMIT describe it.
	Workspace WorkspaceRef `json:"workspace,omitzero"`

	Mounts       []Mount   `json:"mounts,omitempty"`         // directories, volumes and temporary file systems inside
	Resources    Resources `json:"resources,omitzero"`       // limits of memory, CPUs, processes and disk
	Network      Network   `json:"network,omitzero"`         // hosts that the sandbox can reach
	Secrets      []Secret  `json:"secrets,omitempty"`        // values that programs use without having them
	Ports        []Port    `json:"ports,omitempty"`          // ports that others can reach
	ReadOnlyRoot bool      `json:"read_only_root,omitempty"` // only the work directory and mounts can be written to

	// Cache redirects the cache directories in the home directory of User to the project's cache
	// volume; see CacheDirs. Sandboxes of the project with Cache and the same user share these
	// directories. A directory that already has files when the sandbox starts is not redirected.
	// Sandboxes can use files that other sandboxes of the project cached: the project is the
	// security boundary.
	Cache bool `json:"cache,omitempty"`
	// CachePaths are additional cache directories, relative to the home directory.
	CachePaths []string `json:"cache_paths,omitempty"`

	// TTL is the time from creation to removal of the sandbox, including its data volume and even
	// if it is in use. Extend changes the expiry. 0 means no expiry.
	TTL Duration `json:"ttl,omitzero"`
	// IdleStop is the idle time after which the sandbox is stopped, as by Stop. A sandbox is idle
	// while no process runs in it and no call uses it. 0 means DefaultIdleStop if the provider
	// has Caps.IdleStop; Never disables it.
	IdleStop Duration `json:"idle_stop,omitzero"`
	// IdleRemove makes IdleStop remove the sandbox, including its data volume, instead of
	// stopping it.
	IdleRemove bool `json:"idle_remove,omitempty"`
	// AutoRemove removes the sandbox, including its data volume, AutoRemoveDelay after the end
	// of its main process. All output of the main process is retained for clients that attach
	// within AutoRemoveDelay of its start.
	AutoRemove bool `json:"auto_remove,omitempty"`
	// NoStart creates the sandbox without starting it, in StateCreated.
	NoStart bool `json:"no_start,omitempty"`
	// Snapshot is the id of a snapshot from which the sandbox starts, instead of an image.
	Snapshot string `json:"snapshot,omitempty"`

	// System belongs to Atoll's layers. Providers store and return it. Package layer/system refuses it
	// from callers and hides it from them.
	System System `json:"system,omitzero"`
}

// A System holds the additions of Atoll's layers to a Spec.
type System struct {
	Env   []string          `json:"env,omitempty"`   // like Spec.Env; it wins over that
	Notes map[string]string `json:"notes,omitempty"` // what a layer remembers about the sandbox, by its name and subject
	// Warm asks the provider to run a program of its own choice at each start, so that the first command of a
	// caller is as fast as those after it. No call shows that program.
	Warm bool `json:"warm,omitempty"`
}

// IsZero reports whether no layer has added anything.
func (s System) IsZero() bool { return len(s.Env) == 0 && len(s.Notes) == 0 && !s.Warm }

// Environ returns the variables for all processes, with those that hold placeholders of secrets, and those of System last: the last
// one of a name counts.
func (s *Spec) Environ() []string {
	env := slices.Clone(s.Env)
	for _, one := range s.Secrets {
		env = append(env, one.Name+"="+one.Placeholder)
	}
	return append(env, s.System.Env...)
}

// Note returns what a layer remembers under a key.
func (s *Spec) Note(key string) string { return s.System.Notes[key] }

// AddNote remembers text under a key. It does not modify a map that s shares with other specs.
func (s *Spec) AddNote(key, text string) {
	s.System.Notes = maps.Clone(s.System.Notes)
	if s.System.Notes == nil {
		s.System.Notes = map[string]string{}
	}
	s.System.Notes[key] = text
}

// DefaultProject is the project of a Spec with an empty Project.
const DefaultProject = "default"

// A PullPolicy says when a provider asks a registry for an image that is named by a tag. It fetches
// an image that is named by a digest at most once.
type PullPolicy string

// The policies.
const (
	PullMissing PullPolicy = "missing" // when the provider does not have it
	PullAlways  PullPolicy = "always"  // every time; but it does not fetch layers that it has
	PullNever   PullPolicy = "never"
)

// Valid reports whether p is one of the policies.
func (p PullPolicy) Valid() bool { return p == PullMissing || p == PullAlways || p == PullNever }

// A Size is the size of a terminal in character cells.
type Size struct {
	Rows uint16 `json:"rows"` // number of lines
	Cols uint16 `json:"cols"` // number of characters of a line
}

// MountType is the type of a Mount.
type MountType string

// The types of mounts.
const (
	MountBind MountType = "bind" // a directory or file of the machine that runs the provider
	// MountVolume is a named volume of the project; created if missing, not deleted by Remove. Sandboxes with kernels of
	// their own, such as gVisor's and virtual machines, see each other's files, but not each other's file locks.
	MountVolume MountType = "volume"
	MountTmpfs  MountType = "tmpfs" // memory; its files disappear with the sandbox
)

// A Mount adds a directory or a file to a sandbox's file system.
type Mount struct {
	Type     MountType `json:"type"`                // kind of mount
	Source   string    `json:"source,omitempty"`    // bind: absolute path; volume: its name; tmpfs: empty
	Target   string    `json:"target"`              // absolute path in the sandbox
	ReadOnly bool      `json:"read_only,omitempty"` // the sandbox cannot change it
	Size     Bytes     `json:"size,omitzero"`       // tmpfs only; 0 means 64 MiB
}

// Resources are the limits of a sandbox, and its GPUs. The zero value of a limit means the
// provider's default, which is a real limit if the provider can enforce one. Unlimited disables a
// limit. Programs see the limits of memory and CPUs as the size of their machine, or in the files of
// their cgroup. When the memory is used up, the process with the most memory is killed, and its Exit
// has the reason. Processes counts those of all users together.
type Resources struct {
	Memory    Bytes   `json:"memory,omitzero"`    // default 2 GiB
	CPUs      float64 `json:"cpus,omitempty"`     // default: all CPUs of the machine
	Processes int     `json:"processes,omitzero"` // default 1024
	Disk      Bytes   `json:"disk,omitzero"`      // for files outside of volumes; default 4 GiB
	GPUs      GPUs    `json:"gpus,omitempty"`     // default none
}

// Unlimited disables a limit of Resources.
const Unlimited = -1

// Default limits of providers that can enforce them.
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

// Clone returns a deep copy of s.
func (s *Spec) Clone() *Spec {
	c := *s
	c.Labels = maps.Clone(s.Labels)
	c.Cmd = slices.Clone(s.Cmd)
	c.Env = slices.Clone(s.Env)
	c.Mounts = slices.Clone(s.Mounts)
	c.Ports = slices.Clone(s.Ports)
	c.Network.Allow, c.Network.Deny = slices.Clone(s.Network.Allow), slices.Clone(s.Network.Deny)
	c.Network.Rules = slices.Clone(s.Network.Rules)
	for i := range c.Network.Rules {
		r := &c.Network.Rules[i]
		r.Headers, r.SetHeaders, r.SetQuery = maps.Clone(r.Headers), maps.Clone(r.SetHeaders), maps.Clone(r.SetQuery)
	}
	c.Secrets = slices.Clone(s.Secrets)
	for i := range c.Secrets {
		c.Secrets[i].Hosts = slices.Clone(c.Secrets[i].Hosts)
	}
	c.CachePaths = slices.Clone(s.CachePaths)
	c.System = System{Env: slices.Clone(s.System.Env), Notes: maps.Clone(s.System.Notes), Warm: s.System.Warm}
	if s.TTY != nil {
		size := *s.TTY
		c.TTY = &size
	}
	return &c
}

// WithDefaults returns a clone of s with the defaults that do not depend on the provider. It
// normalizes the id, or generates one. Call Validate first.
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

// Complete validates s, and returns it with the defaults and with the calling provider, whose
// name is given. Kinds: ErrInvalid (a field is invalid, or s names another provider).
func (s *Spec) Complete(provider string) (*Spec, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if s.Provider != "" && s.Provider != provider {
		return nil, Errorf("create", s.Name, ErrInvalid, "provider %q not found; the only provider is %s", s.Provider, provider)
	}
	c := s.WithDefaults()
	c.Provider = provider
	return c, nil
}

// CheckCaps returns an ErrUnsupported for the first field of s that a provider with that name and
// caps does not support. advice says what to do instead, by the name of the missing cap in JSON.
func (s *Spec) CheckCaps(provider string, caps Caps, advice map[string]string) error {
	r, mode := s.Resources, s.Network.Mode
	mounts := map[MountType]bool{}
	for _, m := range s.Mounts {
		mounts[m.Type] = true
	}
	for _, field := range []struct {
		set, has     bool
		cap, feature string
	}{
		{s.Image != "" || s.Pull != "", caps.Images, "images", "images"},
		{s.Snapshot != "", caps.Snapshot, "snapshot", "snapshots"},
		{s.Workspace != (WorkspaceRef{}), caps.Workspaces, "workspaces", "workspaces, which package layer/workspace adds"},
		{s.IdleStop > 0 || s.IdleRemove, caps.IdleStop, "idle_stop", "idle stop"},
		{s.TTY != nil, caps.TTY, "tty", "terminals"},
		{s.User != "", caps.Users, "users", "users other than its own"},
		{s.ReadOnlyRoot, caps.ReadOnlyRoot, "read_only_root", "read-only root file system"},
		{mounts[MountBind], caps.BindMounts, "bind_mounts", "bind mounts"},
		{mounts[MountVolume], caps.Volumes, "volumes", "volumes"},
		{mounts[MountTmpfs], caps.Tmpfs, "tmpfs", "tmpfs mounts"},
		{r.Memory > 0, caps.MemoryLimit, "memory_limit", "memory limits"},
		{r.CPUs > 0, caps.CPULimit, "cpu_limit", "CPU limits"},
		{r.Processes > 0, caps.ProcessLimit, "process_limit", "process limits"},
		{r.Disk > 0, caps.DiskLimit || caps.DiskWatch, "disk_limit", "disk limits"},
		{r.GPUs != "", caps.GPU, "gpu", "GPUs"},
		{mode == NetworkOn, caps.NetworkOn, "network_on", "network mode on"},
		{mode == NetworkEgress, caps.Egress, "egress", "network mode egress"},
		{mode == NetworkNamed, caps.NetworkNamed, "network_named", "network mode named"},
		{s.NeedsGateway(), caps.Gateway, "gateway", "gateway: no secrets, deny lists and rules of the network"},
		{s.Publishes(), caps.Publish, "publish", "published ports"},
		{s.Cache, caps.Cache, "cache", "project cache"},
	} {
		if field.set && !field.has {
			missing := "provider " + provider + " has no " + field.feature
			if text := advice[field.cap]; text != "" {
				missing += ": " + text
			}
			return Errorf("create", s.Name, ErrUnsupported, "%s", missing)
		}
	}
	return nil
}

// Validate returns an ErrInvalid for the first field of s that no provider can accept. The
// message says how to fix it.
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
	if s.Pull != "" && !s.Pull.Valid() {
		return bad("pull %q: use missing, always or never", s.Pull)
	}
	for _, k := range slices.Sorted(maps.Keys(s.Labels)) {
		if k == "" || strings.HasPrefix(k, "atoll") {
			return bad("label %q: keys must not be empty or begin with \"atoll\"", k)
		}
	}
	if err := validateEnv(s.Env); err != nil {
		return bad("%w", err)
	}
	if err := validateEnv(s.System.Env); err != nil {
		return bad("system: %w", err)
	}
	if len(s.Cmd) > 0 && s.Cmd[0] == "" {
		return bad("the command is empty")
	}
	if s.Workdir != "" && (!path.IsAbs(s.Workdir) || path.Clean(s.Workdir) == "/") {
		return bad("workdir %q: must be an absolute path other than /", s.Workdir)
	}
	if err := validateUser(s.User); err != nil {
		return bad("%w", err)
	}
	if err := s.validateMounts(); err != nil {
		return bad("%w", err)
	}
	if err := s.Workspace.checkFields(); err != nil {
		return bad("%w", err)
	}
	if err := s.Resources.checkLimits(); err != nil {
		return bad("%w", err)
	}
	if err := s.validateNetwork(); err != nil {
		return bad("%w", err)
	}
	if err := s.validateCache(); err != nil {
		return bad("%w", err)
	}
	if s.TTL < 0 {
		return bad("ttl %s: must not be negative", s.TTL)
	}
	if s.IdleStop < Never {
		return bad("idle_stop %s: must not be negative", s.IdleStop)
	}
	if s.IdleRemove && s.IdleStop == Never {
		return bad("idle_remove needs an idle_stop other than never")
	}
	if s.AutoRemove && len(s.Cmd) == 0 {
		return bad("auto_remove needs a cmd")
	}
	if s.Snapshot != "" && s.Image != "" {
		return bad("snapshot %s has its own image; leave image empty", s.Snapshot)
	}
	if err := s.validateText(); err != nil {
		return bad("%w", err)
	}
	return nil
}

// validateText rejects strings that JSON or a system call cannot represent.
func (s *Spec) validateText() (first error) {
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
			first = fmt.Errorf("environment %q: must be UTF-8", k) // omit the value, as validateEnv does
		}
	}
	for _, k := range slices.Sorted(maps.Keys(s.System.Notes)) {
		check("note", k, s.System.Notes[k])
	}
	check("workdir", s.Workdir)
	check("user", s.User)
	for _, m := range s.Mounts {
		check("mount source", m.Source)
		check("mount target", m.Target)
	}
	check("network", s.Network.Name)
	check("allow", s.Network.Allow...)
	check("deny", s.Network.Deny...)
	for _, r := range s.Network.Rules {
		check("rule", r.Match, r.BasicAuth, r.Redirect)
		for _, values := range []map[string]string{r.Headers, r.SetHeaders, r.SetQuery} {
			check("rule", slices.Sorted(maps.Keys(values))...)
			check("rule", slices.Sorted(maps.Values(values))...)
		}
	}
	for _, one := range s.Secrets {
		check("secret", one.Name, one.Source, one.Placeholder)
		check("secret", one.Hosts...)
	}
	check("cache path", s.CachePaths...)
	check("gpus", string(s.Resources.GPUs))
	for _, p := range s.Ports {
		check("port", p.Name)
	}
	check("snapshot", s.Snapshot)
	return first
}

// checkLimits returns an error for the first invalid limit.
func (r Resources) checkLimits() error {
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

func (s *Spec) validateMounts() error {
	seen := map[string]bool{}
	for _, m := range s.Mounts {
		target := path.Clean(m.Target)
		if !path.IsAbs(m.Target) || target == "/" {
			return fmt.Errorf("mount target %q: must be an absolute path other than /", m.Target)
		}
		if seen[target] {
			return fmt.Errorf("mount target %q: used twice", m.Target)
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

// validateEnv checks the form of env. Its errors contain no values, which may be secrets and must
// not reach logs.
func validateEnv(env []string) error {
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

func validateUser(user string) error {
	if strings.ContainsAny(user, "\x00/ \n") || strings.HasPrefix(user, ":") || strings.HasSuffix(user, ":") {
		return fmt.Errorf("user %q: use a name, UID or UID:GID", user)
	}
	return nil
}

// CacheVolume is the name of the cache volume of each project. No other volume can have this
// name. The first sandbox of the project with Spec.Cache creates it. RemoveVolume deletes it, and
// thereby empties the cache, if no such sandbox exists.
const CacheVolume = ".cache"

// CacheDirs returns the directories, relative to a user's home directory, that Spec.Cache
// redirects to the cache volume: those in which package managers, compilers and editors store
// data that they can fetch again.
func CacheDirs() []string { return slices.Clone(cacheDirs) }

var cacheDirs = []string{
	".bun/install/cache", ".bundle", ".cache", ".cargo/git", ".cargo/registry", ".ccache", ".composer/cache",
	".cursor-server", ".gem", ".gradle/caches", ".gradle/wrapper", ".local/share/uv", ".m2/repository", ".npm",
	".nuget/packages", ".pnpm-store", ".vscode-server", ".yarn", ".zed_server", "go/pkg/mod",
}

// ValidCachePath reports whether path is a valid element of Spec.CachePaths: relative, with
// slashes, without "." and "..", and not the home directory itself.
func ValidCachePath(path string) bool { return fs.ValidPath(path) && path != "." }

func (s *Spec) validateCache() error {
	if len(s.CachePaths) > 0 && !s.Cache {
		return fmt.Errorf("cache_paths need cache")
	}
	for _, p := range s.CachePaths {
		if !ValidCachePath(p) {
			return fmt.Errorf("cache path %q: must be relative to the home directory, without \"..\", like .tool/cache", p)
		}
	}
	return nil
}

// A WorkspaceRef selects the workspace of a sandbox.
type WorkspaceRef struct {
	// Name is the name of a workspace of the sandbox's project.
	Name string `json:"name,omitempty"`
	// Source, instead of Name, is the source of a workspace, which Create adds if the project has
	// none with this source; see package layer/workspace. A Status has Name instead.
	Source string `json:"source,omitempty"`
	// Commit is a commit in the history of the workspace, with all its digits. Empty means the
	// current commit of the workspace.
	Commit string `json:"commit,omitempty"`
	// ReadOnly prevents the sandbox from writing to a directory that is used in place.
	ReadOnly bool `json:"read_only,omitempty"`
}

// checkFields returns an error if r is inconsistent.
func (r WorkspaceRef) checkFields() error {
	switch {
	case r == (WorkspaceRef{}):
		return nil
	case (r.Name == "") == (r.Source == ""):
		return fmt.Errorf("workspace: set either name or source")
	case r.Source != "":
		if err := CheckSource(r.Source); err != nil {
			return err
		}
	case !ValidName(r.Name):
		return fmt.Errorf("workspace %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", r.Name)
	}
	if r.Commit != "" && !commitID().MatchString(r.Commit) {
		return fmt.Errorf("workspace commit %q: use the full commit id, in lower case", r.Commit)
	}
	return nil
}

var (
	commitID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`) })
	// scpSource matches the short form of ssh, in which no slash precedes the colon.
	scpSource = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^([A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9_.-]*:[^:]`)
	})
)

// CheckSource returns an error if s is not a valid source of a workspace. The error omits a
// source that may contain a password.
func CheckSource(s string) error {
	form := "write it like /path/of/a/directory, https://host/repository.git or user@host:repository"
	if !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
		return fmt.Errorf("source: must be UTF-8 without control characters")
	}
	if path.IsAbs(s) {
		return nil
	}
	if !strings.Contains(s, "://") {
		if scpSource().MatchString(s) {
			return nil
		}
		return fmt.Errorf("source: %s", form)
	}
	u, err := url.Parse(s)
	if err != nil {
		return fmt.Errorf("source: invalid URL: %s", form)
	}
	if _, password := u.User.Password(); password || u.User != nil && u.Scheme != "ssh" || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("source: must not contain a user, password or query; use a git credential helper or an SSH agent")
	}
	switch u.Scheme {
	case "https", "http", "ssh", "git":
		if u.Hostname() == "" || strings.HasPrefix(u.Host, "-") || strings.HasPrefix(u.User.Username(), "-") {
			return fmt.Errorf("source %q: missing host: %s", s, form)
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
