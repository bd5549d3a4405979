// Package config turns one YAML file into a stack of providers. It is the only
// package that imports all of them.
//
// A setting is taken from the first of these that has it: a flag, the
// environment (ATOLL_ and its key in capitals, "log.level" being
// ATOLL_LOG_LEVEL), the file, its default. A key that nobody knows is an error
// wherever it stands. [Config.Values] tells where every value came from.
//
//	cfg, err := config.Load(config.Source{Env: os.Environ()})
//	if err != nil {
//		return err
//	}
//	p, err := config.Open(cfg, config.Options{Log: log})
package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/seed46cd37a8/atoll"
	dagger "github.com/seed46cd37a8/atoll/agent/jobs/dagger/settings"
	kubernetes "github.com/seed46cd37a8/atoll/provider/kubernetes/settings"
	modal "github.com/seed46cd37a8/atoll/provider/modal/settings"
	"github.com/seed46cd37a8/atoll/server/api"
	"github.com/seed46cd37a8/atoll/storage/store/postgres"
)

// Config is all that can be set. Load makes one; a zero one must have at least
// StateDir and Provider set before Open.
type Config struct {
	StateDir  string   `yaml:"state_dir" form:"path" doc:"directory of sandboxes, volumes, caches and the server's socket"`
	Provider  string   `yaml:"provider" doc:"what makes the sandboxes that name no provider: gvisor, docker, microvm, vmdocker, kubernetes, modal, local or mock; unless it is set, docker stands in where the default does not work, if providers has it: see atoll doctor"`
	Providers []string `yaml:"providers" doc:"what sandboxes can be made by when they name it, and are found on; that of provider always is one of them"`
	Project   string   `yaml:"project" doc:"project of sandboxes that name none"`
	// ProjectProviders are "PROJECT=PROVIDER".
	ProjectProviders []string    `yaml:"project_providers" doc:"what makes the sandboxes of a project that name no provider: PROJECT=PROVIDER"`
	URL              string      `yaml:"url" doc:"server to use instead of this machine: http://host:port or unix:///path; several that share a store with commas between them"`
	Token            Secret      `yaml:"token" doc:"bearer token, for url and for serve on TCP: env:NAME or file:/path"`
	Listen           []string    `yaml:"listen" doc:"where serve listens besides the state directory's socket: unix:///path or host:port"`
	Accounts         []string    `yaml:"accounts" doc:"who else may use serve on TCP, and the token of each: NAME=env:VARIABLE or NAME:ROLE=file:/path; with the role project, which may use some projects only: NAME:project:PROJECT+PROJECT=file:/path"`
	MaxUpload        atoll.Bytes `yaml:"max_upload" doc:"largest file or archive that serve takes, like 16g; -1 for no limit"`
	SSH              SSH         `yaml:"ssh"`
	Log              Log         `yaml:"log"`
	Resources        Resources   `yaml:"resources"`
	// MaxSandboxes counts those that stay, not those of atoll run.
	MaxSandboxes int `yaml:"max_sandboxes" doc:"how many sandboxes there may be, besides those of atoll run; 0 for any number"`
	// Quota is that of each project, unless Quotas has one for it, which takes its place.
	Quota  Quota             `yaml:"quota"`
	Quotas map[string]*Quota `yaml:"quotas"`
	// IdleStop is that of sandboxes which say nothing of it; 0 means never.
	IdleStop   atoll.Duration `yaml:"idle_stop" doc:"stop a sandbox that nobody uses for so long, like 30m; 0 for never"`
	IdleRemove bool           `yaml:"idle_remove" doc:"remove it then, with its data volume, instead of stopping it"`
	Lifetime   atoll.Duration `yaml:"lifetime" doc:"how long a sandbox may live at most, whatever it does, like 24h; 0 for no limit"`
	CachePaths []string       `yaml:"cache_paths" doc:"directories below the home directory that sandboxes with a cache keep in it besides the usual ones, like .tool/cache"`

	Store     Store     `yaml:"store"`
	Image     Image     `yaml:"image"`
	Reconcile Reconcile `yaml:"reconcile"`
	Clone     Clone     `yaml:"clone"`
	Session   Session   `yaml:"session"`
	Sync      Sync      `yaml:"sync"`
	Template  Template  `yaml:"template"`
	Audit     Audit     `yaml:"audit"`
	// Conversation is where conversations are kept.
	Conversation Conversation `yaml:"conversation"`
	Tools        Tools        `yaml:"tools"`
	Compute      Compute      `yaml:"compute"`
	// Pools are in the file alone.
	Pools map[string]*Pool `yaml:"pool"`
	// Plugins are in the file alone.
	Plugins map[string]*Plugin `yaml:"plugin"`

	// One table for each provider, under its name, for what makes the machines of some, and
	// for a backend of Compute.
	GVisor      GVisor      `yaml:"gvisor"`
	Docker      Docker      `yaml:"docker"`
	MicroVM     MicroVM     `yaml:"microvm"`
	Firecracker Firecracker `yaml:"firecracker"`
	VMDocker    VMDocker    `yaml:"vmdocker"`
	Kubernetes  Kubernetes  `yaml:"kubernetes"`
	Modal       Modal       `yaml:"modal"`
	Dagger      Dagger      `yaml:"dagger"`
	Local       Local       `yaml:"local"`
	Mock        Mock        `yaml:"mock"`

	server   *postgres.Server // nil where the store is a file
	file     string
	values   []Value
	warnings []string
}

// Log says what is logged, and how.
type Log struct {
	Level  string `yaml:"level" form:"auto debug info warn error" doc:"least level that is logged; auto is info for serve, else warnings in short lines for people"`
	Format string `yaml:"format" form:"text json" doc:"text or json"`
}

// Resources are the limits of sandboxes that name none, where the provider can
// enforce them; zero leaves it to the provider's own.
type Resources struct {
	Memory    atoll.Bytes `yaml:"memory" doc:"like 2g"`
	CPUs      float64     `yaml:"cpus" doc:"like 1.5"`
	Processes int         `yaml:"processes" doc:"like 1024"`
	Disk      atoll.Bytes `yaml:"disk" doc:"what may be written outside of volumes, like 4g"`
}

// A Source is what Load reads. Its zero value gives the defaults and the file
// at its usual place.
type Source struct {
	File  string            // the YAML file; "" means ATOLL_CONFIG, else the usual place, where it may be missing
	Env   []string          // as os.Environ gives it
	Flags map[string]string // by key; lists are separated by commas
}

// A Value is one setting in effect.
type Value struct {
	Key   string `json:"key"`
	Value string `json:"value"` // secrets as their reference, or masked
	From  string `json:"from"`  // "default", "file:line", "ATOLL_KEY" or "--flag"
	Doc   string `json:"doc"`
}

// FileVar names the environment variable that holds the path of the file.
const FileVar = "ATOLL_CONFIG"

// Load reads the file, the environment and the flags of src. It reports all
// that is wrong with them at once, as ErrInvalid.
func Load(src Source) (*Config, error) {
	env := environ(src.Env)
	cfg := defaults(env)
	s := schemaOf(cfg, homeDir(env))
	file, named := cmp.Or(src.File, env[FileVar]), true
	if file == "" {
		file, named = usualFile(env), false
	}
	err := errors.Join(s.readFile(file, named), s.readEnv(src.Env), s.readFlags(src.Flags), cfg.check(s))
	if err != nil {
		return nil, atoll.E("config", "", atoll.ErrInvalid, err)
	}
	if cfg.server, err = cfg.newServer(); err != nil {
		return nil, err
	}
	cfg.file, cfg.values, cfg.warnings = file, s.values(), s.warnings
	return cfg, nil
}

// File is the path of the file that was read, or would have been were it there.
func (c *Config) File() string { return c.file }

// Warnings say which values were not used, and what is instead. Load returns an error
// for all but those of variables that other programs ignore when they make no sense.
func (c *Config) Warnings() []string { return c.warnings }

// Values lists every setting with where it came from, in the order of the
// documentation.
func (c *Config) Values() []Value { return c.values }

// Origin says where the value of key came from, as Values does.
func (c *Config) Origin(key string) string {
	for _, v := range c.values {
		if v.Key == key {
			return v.From
		}
	}
	return ""
}

// IsSet reports whether the value of key is anything else than the default.
func (c *Config) IsSet(key string) bool {
	from := c.Origin(key)
	return from != "" && from != "default"
}

// Socket is the path of the socket that a server for c's state directory
// listens on.
func (c *Config) Socket() string { return filepath.Join(c.StateDir, "atoll.sock") }

func defaults(env map[string]string) *Config {
	state := env["XDG_STATE_HOME"]
	if !filepath.IsAbs(state) { // the XDG rules: a relative one is ignored
		state = ""
		if home := homeDir(env); home != "" {
			state = filepath.Join(home, ".local", "state")
		}
	}
	if state != "" {
		state = filepath.Join(state, "atoll")
	}
	return &Config{
		StateDir:     state,
		Provider:     DefaultProvider(runtime.GOOS),
		Providers:    DefaultProviders(runtime.GOOS),
		Project:      atoll.DefaultProject,
		Log:          Log{Level: "auto", Format: "text"},
		IdleStop:     atoll.DefaultIdleStop,
		Audit:        defaultAudit(),
		MaxSandboxes: defaultMaxSandboxes,
		MaxUpload:    16 << 30,
		Image:        defaultImage(),
		Store:        defaultStore(),
		Clone:        defaultClone(),
		Session:      defaultSession(),
		Sync:         defaultSync(),
		Template:     defaultTemplate(),
		Conversation: defaultConversation(),
		Tools:        defaultTools(),
		Compute:      defaultCompute(),
		Dagger:       dagger.Default(),
		Reconcile:    defaultReconcile(),
		GVisor:       defaultGVisor(),
		Docker:       defaultDocker(),
		MicroVM:      defaultMicroVM(),
		Firecracker:  defaultFirecracker(),
		VMDocker:     defaultVMDocker(),
		Kubernetes:   kubernetes.Default(),
		Modal:        modal.Default(),
	}
}

// defaultMaxSandboxes is what one machine has room for.
const defaultMaxSandboxes = 100

// check finds what is wrong with values that are well formed on their own, and
// says where each came from.
func (c *Config) check(s *schema) error {
	var errs errorList
	bad := func(key string, err error) {
		switch l := s.leaf(key); {
		case err == nil:
		case l.lenient && l.from == l.alias:
			s.forgive(l, err)
		default:
			errs.addf("%s: %w", origin(l.from, key), err)
		}
	}
	if c.StateDir == "" {
		bad("state_dir", errors.New("there is no home directory: set HOME, XDG_STATE_HOME or ATOLL_STATE_DIR"))
	}
	if !atoll.ValidName(c.Project) {
		bad("project", fmt.Errorf("%q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", c.Project))
	}
	_, err := c.find(c.Provider)
	bad("provider", err)
	for _, name := range c.Providers {
		_, err := c.find(name)
		bad("providers", err)
	}
	_, err = c.projects()
	bad("project_providers", err)
	bad("url", checkURL(c.URL))
	for _, listen := range c.Listen {
		bad("listen", checkListen(listen))
	}
	if c.SSH.Listen != "" {
		bad("ssh.listen", c.SSH.check())
	}
	_, err = c.accounts()
	bad("accounts", err)
	c.Store.check(bad)
	if c.MaxUpload <= 0 && c.MaxUpload != atoll.Unlimited {
		bad("max_upload", fmt.Errorf("%s: must be positive, or -1 for no limit", c.MaxUpload))
	}
	for _, limit := range []struct {
		key string
		n   float64
	}{
		{"memory", float64(c.Resources.Memory)}, {"cpus", c.Resources.CPUs},
		{"processes", float64(c.Resources.Processes)}, {"disk", float64(c.Resources.Disk)},
	} {
		if limit.n < 0 && limit.n != atoll.Unlimited {
			bad("resources."+limit.key, fmt.Errorf("%v: must be positive, 0 for the provider's default or -1 for no limit", limit.n))
		}
	}
	for key, d := range map[string]atoll.Duration{"idle_stop": c.IdleStop, "lifetime": c.Lifetime} {
		if d < 0 && d != atoll.Never {
			bad(key, fmt.Errorf("%s: must be positive, or 0 for never", d))
		}
	}
	c.checkQuotas(bad)
	c.Audit.check(bad)
	if c.MaxSandboxes < 0 {
		bad("max_sandboxes", fmt.Errorf("%d: must be positive, or 0 for any number", c.MaxSandboxes))
	}
	for _, path := range c.CachePaths {
		if !atoll.ValidCachePath(path) {
			bad("cache_paths", fmt.Errorf("%q: must be relative to the home directory, without \"..\"", path))
		}
	}
	c.Image.check(bad)
	c.Firecracker.check(bad)
	c.Kubernetes.Check(bad)
	c.Modal.Check(bad)
	if c.Reconcile.Every < 0 {
		bad("reconcile.every", fmt.Errorf("%s: must be positive, or 0 for at the start only", c.Reconcile.Every))
	}
	c.Clone.check(bad)
	c.Session.check(bad)
	c.Sync.check(bad)
	c.Template.check(bad)
	c.Conversation.check(bad)
	c.Tools.check(bad)
	c.Dagger.Check(bad)
	c.checkPools(bad)
	c.checkPlugins(bad)
	for _, path := range c.GVisor.HostPaths {
		if !filepath.IsAbs(path) {
			bad("gvisor.host_paths", fmt.Errorf("%q: must be an absolute path", path))
		}
	}
	return errs.join()
}

// checkURL checks the URL of a server, or those of several with commas between them.
func checkURL(s string) error {
	if s == "" {
		return nil
	}
	for _, one := range api.SplitURLs(s) {
		if err := checkServer(one); err != nil {
			return err
		}
	}
	return nil
}

func checkServer(s string) error {
	u, err := url.Parse(s)
	fit := err == nil && u.User == nil
	switch {
	case fit && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "":
		return nil
	case fit && u.Scheme == "unix" && u.Host == "" && filepath.IsAbs(u.Path):
		return nil
	case strings.Contains(s, "@"): // behind a password, perhaps, which is not repeated
		return errors.New("write it like http://host:port or unix:///path, without user or password: the token goes into token, or ATOLL_TOKEN")
	}
	return fmt.Errorf("%q: write it like http://host:port or unix:///path", s)
}

func checkListen(s string) error {
	if path, ok := strings.CutPrefix(s, "unix://"); ok && filepath.IsAbs(path) {
		return nil
	}
	if _, port, err := net.SplitHostPort(s); err == nil && port != "" {
		return nil
	}
	return fmt.Errorf("%q: write it like 127.0.0.1:7070 or unix:///path", s)
}

// usualFile is where the file is looked for when nobody names one; "" when
// there is no home directory.
func usualFile(env map[string]string) string {
	dir := env["XDG_CONFIG_HOME"]
	if !filepath.IsAbs(dir) {
		home := homeDir(env)
		if home == "" {
			return ""
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "atoll", "config.yaml")
}

func homeDir(env map[string]string) string {
	if home := env["HOME"]; filepath.IsAbs(home) {
		return home
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return home
}

func environ(env []string) map[string]string {
	m := make(map[string]string, len(env))
	for _, kv := range env {
		k, v, _ := strings.Cut(kv, "=")
		m[k] = v
	}
	return m
}
