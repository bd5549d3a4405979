// Package config reads the configuration of Atoll: one YAML file, the environment and flags. Package stack opens what it
// describes.
//
// A setting has the value of the first of these sources that has one: a flag, the environment (ATOLL_ and the key in
// capitals, such as ATOLL_LOG_LEVEL for "log.level"), the file, the default. An unknown key is an error in every
// source. [Config.Values] returns the source of each value.
//
//	cfg, err := config.Load(config.Source{Env: os.Environ()})
//	if err != nil {
//		return err
//	}
//	b, err := stack.NewBuilder(cfg)
//	if err != nil {
//		return err
//	}
//	p, err := b.Open(stack.Options{Log: log})
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
	"github.com/seed46cd37a8/atoll/layer/pool"
	kubernetes "github.com/seed46cd37a8/atoll/provider/kubernetes/settings"
	modal "github.com/seed46cd37a8/atoll/provider/modal/settings"
	"github.com/seed46cd37a8/atoll/server/api/client"
)

// Config is the whole configuration. Load returns one. A zero Config needs at least StateDir and Provider before it
// can be opened.
type Config struct {
	StateDir  string   `yaml:"state_dir" form:"path" doc:"directory of sandboxes, volumes, caches and the server's socket"`
	Provider  string   `yaml:"provider" doc:"provider of sandboxes that name none: gvisor, docker, native, microvm, vmdocker, kubernetes, modal, local or mock; if it is not set and the default does not work, docker is used instead, provided that it is in providers: see atoll doctor"`
	Providers []string `yaml:"providers" doc:"providers that sandboxes can name, and whose sandboxes are listed; the one of provider is always among them"`
	Project   string   `yaml:"project" doc:"project of sandboxes that name none"`
	// ProjectProviders has entries of the form "PROJECT=PROVIDER".
	ProjectProviders []string `yaml:"project_providers" doc:"providers of the sandboxes of a project that name none: PROJECT=PROVIDER"`
	// ProjectAllow has entries of the form "PROJECT=ENTRY".
	ProjectAllow []string `yaml:"project_allow" doc:"what new sandboxes of a project with a list of allowed hosts reach, too: PROJECT=ENTRY, with an entry as for --allow; atoll net ask adds some"`
	URL          string   `yaml:"url" doc:"server to use instead of this machine: http://host:port or unix:///path; for several that share a store, a list separated by commas"`
	// Context is the name of one of Contexts, or DefaultContext.
	Context   string              `yaml:"context" doc:"context to use, the name of a server in contexts; default means none: url, or else this machine"`
	Contexts  map[string]*Context `yaml:"contexts"`
	Token     Secret              `yaml:"token" doc:"bearer token, for url and for serve on TCP: env:NAME or file:/path"`
	Listen    []string            `yaml:"listen" doc:"addresses on which serve listens besides the socket in the state directory: unix:///path or host:port"`
	PublicURL []string            `yaml:"public_url" doc:"addresses at which browsers reach serve, like https://atoll.example.com; links to ports have the first one"`
	Origins   []string            `yaml:"origins" doc:"origins of other web pages that may use serve with a token, like https://app.example.com; none by default"`
	Accounts  []string            `yaml:"accounts" doc:"other accounts that may use serve on TCP, each with its token: NAME=env:VARIABLE or NAME:ROLE=file:/path; with the role project, for some projects only: NAME:project:PROJECT+PROJECT=file:/path"`
	MaxUpload atoll.Bytes         `yaml:"max_upload" doc:"largest file or archive that serve accepts, like 16g; -1 for no limit"`
	SSH       SSH                 `yaml:"ssh"`
	Ports     Ports               `yaml:"ports"`
	Log       Log                 `yaml:"log"`
	Resources Resources           `yaml:"resources"`
	// MaxSandboxes does not count the temporary sandboxes of atoll run.
	MaxSandboxes int `yaml:"max_sandboxes" doc:"most sandboxes at a time, without those of atoll run; 0 for any number"`
	// Quota applies to each project that has none in Quotas.
	Quota    Quota             `yaml:"quota"`
	Quotas   map[string]*Quota `yaml:"quotas"`
	Projects Projects          `yaml:"projects"`
	// IdleStop applies to sandboxes that do not set it; 0 means never.
	IdleStop   atoll.Duration `yaml:"idle_stop" doc:"stop a sandbox that has been idle for so long, like 30m; 0 for never"`
	IdleRemove bool           `yaml:"idle_remove" doc:"remove such a sandbox with its data volume, instead of stopping it"`
	Lifetime   atoll.Duration `yaml:"lifetime" doc:"maximum lifetime of a sandbox, like 24h; 0 for no limit"`
	CachePaths []string       `yaml:"cache_paths" doc:"directories below the home directory that are in the cache of sandboxes with one, besides the usual ones, like .tool/cache"`

	Store     Store     `yaml:"store"`
	Image     Image     `yaml:"image"`
	Reconcile Reconcile `yaml:"reconcile"`
	Clone     Clone     `yaml:"clone"`
	Session   Session   `yaml:"session"`
	Sync      Sync      `yaml:"sync"`
	Template  Template  `yaml:"template"`
	Audit     Audit     `yaml:"audit"`
	// Conversation configures the store of conversations.
	Conversation  Conversation `yaml:"conversation"`
	Tools         Tools        `yaml:"tools"`
	Compute       Compute      `yaml:"compute"`
	PoolCreations int          `yaml:"pool_creations" doc:"most sandboxes that the pools of a provider create at a time, so that others get the machine, too"`
	Warm          bool         `yaml:"warm" doc:"let serve boot sandboxes ahead of requests: one, and more if more are asked for, in at most 5 % of this machine's memory; none after an hour without a request; only with gvisor and native"`
	// Pools can be set in the file only.
	Pools map[string]*Pool `yaml:"pool"`
	// Plugins can be set in the file only.
	Plugins map[string]*Plugin `yaml:"plugin"`

	// One table for each provider under its name, for some drivers, and for a backend of Compute.
	GVisor      GVisor      `yaml:"gvisor"`
	Native      Native      `yaml:"native"`
	Docker      Docker      `yaml:"docker"`
	MicroVM     MicroVM     `yaml:"microvm"`
	Firecracker Firecracker `yaml:"firecracker"`
	VMDocker    VMDocker    `yaml:"vmdocker"`
	Kubernetes  Kubernetes  `yaml:"kubernetes"`
	Modal       Modal       `yaml:"modal"`
	Dagger      Dagger      `yaml:"dagger"`
	Local       Local       `yaml:"local"`
	Mock        Mock        `yaml:"mock"`

	file     string
	values   []Value
	warnings []string
}

// Log configures the log.
type Log struct {
	Level  string `yaml:"level" form:"auto debug info warn error" doc:"lowest level that is logged; auto means info for serve, and short warnings for people in other commands"`
	Format string `yaml:"format" form:"text json" doc:"text or json"`
}

// Resources are the limits of sandboxes that set none, if the provider can enforce them. Zero means the default of
// the provider.
type Resources struct {
	Memory    atoll.Bytes `yaml:"memory" doc:"memory limit of sandboxes that set none, like 4g; 0 for the default of the provider, which is 2g, or 256m for microvm; -1 for no limit"`
	CPUs      float64     `yaml:"cpus" doc:"CPU limit of such sandboxes, like 1.5"`
	Processes int         `yaml:"processes" doc:"process limit of such sandboxes, like 1024"`
	Disk      atoll.Bytes `yaml:"disk" doc:"limit of the files that such sandboxes write outside of volumes, like 4g"`
}

// A Source has the inputs of Load. The zero value means the defaults, and the file at its default path.
type Source struct {
	File  string            // path of the YAML file; "" means ATOLL_CONFIG, or else the default path, which may be missing
	Env   []string          // as returned by os.Environ
	Flags map[string]string // by key; lists are separated by commas
}

// A Value is one setting in effect.
type Value struct {
	Key   string `json:"key"`
	Value string `json:"value"` // secrets as references, or masked
	From  string `json:"from"`  // "default", "file:line", "ATOLL_KEY" or "--flag"
	Doc   string `json:"doc"`
}

// FileVar names the environment variable that holds the path of the file.
const FileVar = "ATOLL_CONFIG"

// Load reads the file, the environment and the flags of src. It reports all mistakes at once. Kinds: ErrInvalid.
func Load(src Source) (*Config, error) { return loadWith(src, nil) }

// loadWith is Load with data in place of the content of the file, unless data is nil.
func loadWith(src Source, data []byte) (*Config, error) {
	env := parseEnv(src.Env)
	cfg := defaultConfig(env)
	s := schemaOf(cfg, homeDir(env))
	file, named := findFile(src, env)
	var err error
	if data == nil {
		data, err = readConfigFile(file, named)
	}
	err = errors.Join(err, s.readData(file, data), s.readEnv(src.Env), s.readFlags(src.Flags), cfg.useContext(s), cfg.checkValues(s))
	if err != nil {
		return nil, atoll.E("config", "", atoll.ErrInvalid, err)
	}
	cfg.file, cfg.values, cfg.warnings = file, s.listValues(), s.warnings
	return cfg, nil
}

// Path returns the path of the file of src, whether it exists or not. Kinds: ErrInvalid (there is no home directory).
func Path(src Source) (string, error) {
	path, _ := findFile(src, parseEnv(src.Env))
	if path == "" {
		return "", atoll.Errorf("config", "", atoll.ErrInvalid, "there is no home directory: set HOME, XDG_CONFIG_HOME or %s", FileVar)
	}
	return path, nil
}

// findFile returns the path of the file, or "" if there is no home directory, and whether it was named.
func findFile(src Source, env map[string]string) (path string, named bool) {
	if path = cmp.Or(src.File, env[FileVar]); path != "" {
		return path, true
	}
	return defaultFile(env), false
}

// File returns the path of the file, whether it exists or not.
func (c *Config) File() string { return c.file }

// Warnings reports values that were ignored, and the values used instead. These are invalid values of variables that
// are shared with other programs; for other invalid values, Load returns an error.
func (c *Config) Warnings() []string { return c.warnings }

// Values returns every setting and its source, in the order of the documentation.
func (c *Config) Values() []Value { return c.values }

// Origin returns the source of the value of key: Value.From.
func (c *Config) Origin(key string) string {
	for _, v := range c.values {
		if v.Key == key {
			return v.From
		}
	}
	return ""
}

// IsSet reports whether key has a value from another source than the default.
func (c *Config) IsSet(key string) bool {
	from := c.Origin(key)
	return from != "" && from != "default"
}

// Socket returns the path of the socket that a server of c's state directory listens on.
func (c *Config) Socket() string { return filepath.Join(c.StateDir, "atoll.sock") }

// defaultConfig returns the defaults for an environment.
func defaultConfig(env map[string]string) *Config {
	state := env["XDG_STATE_HOME"]
	if !filepath.IsAbs(state) { // the XDG specification ignores relative paths
		state = ""
		if home := homeDir(env); home != "" {
			state = filepath.Join(home, ".local", "state")
		}
	}
	if state != "" {
		state = filepath.Join(state, "atoll")
	}
	return &Config{
		StateDir:      state,
		Provider:      DefaultProvider(runtime.GOOS),
		Providers:     DefaultProviders(runtime.GOOS),
		Project:       atoll.DefaultProject,
		Context:       DefaultContext,
		Log:           Log{Level: "auto", Format: "text"},
		IdleStop:      atoll.DefaultIdleStop,
		Audit:         defaultAudit(),
		MaxSandboxes:  defaultMaxSandboxes,
		MaxUpload:     16 << 30,
		Ports:         defaultPorts(),
		Image:         defaultImage(),
		Projects:      defaultProjects(),
		PoolCreations: pool.DefaultMaxCreations,
		Warm:          true,
		Store:         defaultStore(),
		Clone:         defaultClone(),
		Session:       defaultSession(),
		Sync:          defaultSync(),
		Template:      defaultTemplate(),
		Conversation:  defaultConversation(),
		Tools:         defaultTools(),
		Compute:       defaultCompute(),
		Dagger:        dagger.Default(),
		Reconcile:     defaultReconcile(),
		GVisor:        defaultGVisor(),
		Docker:        defaultDocker(),
		MicroVM:       defaultMicroVM(),
		Firecracker:   defaultFirecracker(),
		VMDocker:      defaultVMDocker(),
		Kubernetes:    kubernetes.Default(),
		Modal:         modal.Default(),
	}
}

// defaultMaxSandboxes suits one machine.
const defaultMaxSandboxes = 100

// checkValues checks values that could be parsed, and reports the source of each invalid one.
func (c *Config) checkValues(s *schema) error {
	var errs errorList
	bad := func(key string, err error) {
		switch l := s.findSetting(key); {
		case err == nil:
		case l.lenient && l.from == l.alias:
			s.ignoreAlias(l, err)
		default:
			errs.addErrorf("%s: %w", DescribeOrigin(l.from, key), err)
		}
	}
	if c.StateDir == "" {
		bad("state_dir", errors.New("there is no home directory: set HOME, XDG_STATE_HOME or ATOLL_STATE_DIR"))
	}
	if !atoll.ValidName(c.Project) {
		bad("project", fmt.Errorf("%q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", c.Project))
	}
	_, err := c.FindProvider(c.Provider)
	bad("provider", err)
	for _, name := range c.Providers {
		_, err := c.FindProvider(name)
		bad("providers", err)
	}
	_, err = c.ParseProjectProviders()
	bad("project_providers", err)
	bad("url", checkURL(c.URL))
	c.checkContexts(bad)
	for _, listen := range c.Listen {
		bad("listen", checkListen(listen))
	}
	if c.SSH.Listen != "" {
		bad("ssh.listen", c.SSH.checkValues())
	}
	c.checkWeb(bad)
	_, err = c.ParseAccounts()
	bad("accounts", err)
	c.Store.checkValues(bad)
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
	c.Audit.checkValues(bad)
	if c.MaxSandboxes < 0 {
		bad("max_sandboxes", fmt.Errorf("%d: must be positive, or 0 for any number", c.MaxSandboxes))
	}
	for _, path := range c.CachePaths {
		if !atoll.ValidCachePath(path) {
			bad("cache_paths", fmt.Errorf("%q: must be relative to the home directory, without \"..\"", path))
		}
	}
	c.Image.checkValues(bad)
	c.Projects.checkValues(bad)
	c.Firecracker.checkValues(bad)
	c.Kubernetes.Check(bad)
	c.Modal.Check(bad)
	if c.Reconcile.Every < 0 {
		bad("reconcile.every", fmt.Errorf("%s: must be positive, or 0 for at the start only", c.Reconcile.Every))
	}
	c.Clone.checkValues(bad)
	c.Session.checkValues(bad)
	c.Sync.checkValues(bad)
	c.Template.checkValues(bad)
	c.Conversation.checkValues(bad)
	c.Tools.checkValues(bad)
	c.Dagger.Check(bad)
	c.checkPools(bad)
	c.checkPlugins(bad)
	checkHostPaths(bad, "gvisor.host_paths", c.GVisor.HostPaths)
	checkHostPaths(bad, "native.host_paths", c.Native.HostPaths)
	return errs.joinErrors()
}

// checkHostPaths calls bad for each path that is not absolute.
func checkHostPaths(bad func(key string, err error), key string, paths []string) {
	for _, path := range paths {
		if !filepath.IsAbs(path) {
			bad(key, fmt.Errorf("%q: must be an absolute path", path))
		}
	}
}

// checkURL checks the URL of a server, or several URLs separated by commas.
func checkURL(s string) error {
	if s == "" {
		return nil
	}
	for _, one := range client.SplitURLs(s) {
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
	case strings.Contains(s, "@"): // do not repeat what may be a password
		return errors.New("write it like http://host:port or unix:///path, without user or password: set token or ATOLL_TOKEN instead")
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

// defaultFile returns the path of the file if none is named, or "" if there is no home directory.
func defaultFile(env map[string]string) string {
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

// parseEnv returns the variables of env as a map.
func parseEnv(env []string) map[string]string {
	m := make(map[string]string, len(env))
	for _, kv := range env {
		k, v, _ := strings.Cut(kv, "=")
		m[k] = v
	}
	return m
}
