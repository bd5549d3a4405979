// Package template describes sandboxes for agents: the sandbox's spec, the directory
// that is synced with object storage, the place of its versions, the agent's command,
// and the hooks ([hooks.Hooks]).
//
// A [Set] holds templates by name. It starts with claude-code, codex and shell; Go code
// and YAML files add others:
//
//	set := template.NewSet()
//	err := set.Register("mine", func(agentID string) (*template.Template, error) {
//		return &template.Template{
//			Spec:       atoll.Spec{Image: "debian:13"},
//			KeyPrefix:  "agents/{account}/{agent}",
//			InitFromS3: true,
//			Agent:      template.Agent{Command: []string{"mine", "--prompt", "{prompt}"}},
//			Hooks:      hooks.Default(),
//		}, nil
//	})
//	...
//	err = set.LoadDir("/etc/atoll/templates")
//	t, err := set.Get("mine", agentID)
//
// examples/templates/reviewer.yaml shows and explains the keys of a file.
package template

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/hooks"
)

// A Template is a recipe of sandboxes. The caller owns the result of Set.Get.
type Template struct {
	Name string `yaml:"-"` // set by the Set
	Doc  string `yaml:"doc"`

	// Provider makes the sandboxes; "" means the default one.
	Provider string `yaml:"provider"`
	// Spec is the spec of the sandboxes. It must not set fields of a single sandbox,
	// such as ID and Name.
	Spec atoll.Spec `yaml:"spec"`
	// Volume is a pattern for the name of a volume of the project that is mounted at
	// Dir. "" puts Dir into the sandbox's own data volume, if it is the work directory.
	Volume string `yaml:"volume"`
	// Dir is the agent's work directory, which is synced; "" means the Spec's Workdir,
	// or else atoll.DefaultWorkdir.
	Dir string `yaml:"dir"`

	// Bucket is a pattern for the store of versions of Dir, in the forms of sync.store;
	// "" means sync.store itself.
	Bucket string `yaml:"bucket"`
	// KeyPrefix is a pattern for the prefix of their keys; "" means DefaultKeyPrefix.
	KeyPrefix string `yaml:"key_prefix"`
	// InitFromS3 starts sandboxes with the latest version.
	InitFromS3 bool `yaml:"init_from_s3"`
	// Policy tells what outlives a sandbox; see PolicyFor.
	Policy Policy `yaml:"policy"`
	// KeepVersions and KeepDays select the versions that stay when old ones are
	// removed: the newest, and those no older. If both are 0, all stay.
	KeepVersions int `yaml:"keep_versions"`
	KeepDays     int `yaml:"keep_days"`

	Agent Agent `yaml:"agent"`
	// Hooks run at the four moments of a sandbox's life. The default is none, so a
	// Template made in Go usually starts with hooks.Default.
	Hooks hooks.Hooks `yaml:"-"`
}

// DefaultKeyPrefix is the KeyPrefix of a Template without one.
const DefaultKeyPrefix = "docs/{account}/{conversation}"

// Policy tells what outlives a sandbox.
type Policy string

// The policies.
const (
	// PolicyEphemeral keeps nothing: the end of the sandbox also removes its data
	// volume, and nothing is ever pushed.
	PolicyEphemeral Policy = "ephemeral"
	// PolicyPersistent keeps volumes: the end of the sandbox leaves its data volume for
	// the next sandbox with its id. It doesn't change object storage.
	PolicyPersistent Policy = "persistent"
	// PolicySynced keeps versions: Dir is pushed after each turn, and before the
	// sandbox ends. The end only removes its data volume if the last push succeeded.
	// Named volumes always stay.
	PolicySynced Policy = "synced"
)

// PolicyFor returns the Policy, or the default: PolicySynced if there is a store for
// versions, else PolicyPersistent. Kinds: ErrInvalid (PolicySynced without a store).
func (t *Template) PolicyFor(stored bool) (Policy, error) {
	switch {
	case t.Policy == PolicySynced && !stored:
		return "", t.invalidErrorf("policy synced: no store for versions: set the template's bucket or sync.store")
	case t.Policy != "":
		return t.Policy, nil
	case stored:
		return PolicySynced, nil
	}
	return PolicyPersistent, nil
}

// WorkDir returns the Dir, or its default.
func (t *Template) WorkDir() string {
	return path.Clean(cmp.Or(t.Dir, t.Spec.Workdir, atoll.DefaultWorkdir))
}

// SpecFor returns the spec of a sandbox: the Spec with the Provider and the Volume.
// Kinds: ErrInvalid (n doesn't give a valid Volume name).
func (t *Template) SpecFor(n Names) (*atoll.Spec, error) {
	spec := t.Spec.Clone()
	spec.Provider = t.Provider
	if t.Volume == "" {
		return spec, nil
	}
	volume, err := volumeName(t.Volume, n)
	if err != nil {
		return nil, t.invalidErrorf("volume: %w", err)
	}
	spec.Mounts = append(spec.Mounts, atoll.Mount{Type: atoll.MountVolume, Source: volume, Target: t.WorkDir()})
	return spec, nil
}

// Place returns the URL of a directory's versions, in the forms of sync.store; store is
// the value of that. It is "" if neither store nor the Bucket is set. Accounts have
// different places if {account} is in a pattern. Kinds: ErrInvalid (n doesn't give a
// valid place).
func (t *Template) Place(n Names, store string) (string, error) {
	bucket, err := expandPattern(t.Bucket, n)
	if err != nil {
		return "", t.invalidErrorf("bucket: %w", err)
	}
	prefix, err := expandPattern(strings.Trim(cmp.Or(t.KeyPrefix, DefaultKeyPrefix), "/"), n)
	if err != nil {
		return "", t.invalidErrorf("key_prefix: %w", err)
	}
	if bucket = cmp.Or(bucket, store); bucket == "" {
		return "", nil
	}
	return strings.TrimRight(bucket, "/") + "/" + prefix, nil
}

// invalidErrorf returns an ErrInvalid about this template.
func (t *Template) invalidErrorf(format string, args ...any) error {
	return atoll.Errorf("template", t.Name, atoll.ErrInvalid, format, args...)
}

// Validate returns the first invalid setting as an ErrInvalid with advice.
func (t *Template) Validate() error {
	if !atoll.ValidName(t.Name) {
		return t.invalidErrorf("name %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", t.Name)
	}
	if t.Provider != "" && !atoll.ValidName(t.Provider) {
		return t.invalidErrorf("provider %q: use the name of one, like gvisor", t.Provider)
	}
	if err := t.checkSpec(); err != nil {
		return err
	}
	if t.Dir != "" && (!path.IsAbs(t.Dir) || path.Clean(t.Dir) == "/" || strings.ContainsRune(t.Dir, 0)) {
		return t.invalidErrorf("dir %q: must be an absolute path other than /", t.Dir)
	}
	if err := t.checkPatterns(); err != nil {
		return t.invalidErrorf("%w", err)
	}
	switch t.Policy {
	case "", PolicyEphemeral, PolicyPersistent, PolicySynced:
	default:
		return t.invalidErrorf("policy %q: use ephemeral, persistent or synced", t.Policy)
	}
	if t.KeepVersions < 0 || t.KeepDays < 0 {
		return t.invalidErrorf("keep_versions and keep_days must be positive, or 0 for all")
	}
	if err := t.Agent.checkSettings(); err != nil {
		return t.invalidErrorf("agent: %w", err)
	}
	return nil
}

// checkSpec returns an error for fields of a single sandbox.
func (t *Template) checkSpec() error {
	s := &t.Spec
	for _, own := range []struct {
		key string
		set bool
		why string
	}{
		{"id", s.ID != "", "each sandbox has its own"},
		{"name", s.Name != "", "each sandbox has its own"},
		{"provider", s.Provider != "", "it belongs beside spec"},
		{"no_start", s.NoStart, "the agent needs a sandbox that runs"},
		{"auto_remove", s.AutoRemove, "a sandbox outlives its turns"},
	} {
		if own.set {
			return t.invalidErrorf("spec.%s: leave it out: %s", own.key, own.why)
		}
	}
	if err := s.Validate(); err != nil {
		return t.invalidErrorf("spec: %w", err)
	}
	mounted := func(m atoll.Mount) bool { return path.Clean(m.Target) == t.WorkDir() }
	if t.Volume != "" && slices.ContainsFunc(s.Mounts, mounted) {
		return t.invalidErrorf("volume: %s has another mount", t.WorkDir())
	}
	return nil
}

func (t *Template) checkPatterns() error {
	if t.Volume != "" {
		if err := checkPattern("volume", t.Volume); err != nil {
			return err
		}
		if _, err := volumeName(t.Volume, Names{"a", "a", "a", "a"}); err != nil {
			return fmt.Errorf("volume: %w", err)
		}
		if err := checkOwner("volume", t.Volume); err != nil {
			return err
		}
	}
	if err := checkParts("bucket", t.Bucket); err != nil {
		return err
	}
	if err := checkKeys(t.KeyPrefix); err != nil {
		return err
	}
	return checkOwner("key_prefix", t.Bucket+"/"+cmp.Or(t.KeyPrefix, DefaultKeyPrefix))
}
