// Package settings has the settings of the provider modal. It does not import Modal's client:
// atoll reads the settings, and the program atoll-modal uses them.
package settings

import (
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/secretref"
)

// The defaults of settings.
const (
	DefaultImage    = "ubuntu:22.04"
	DefaultPatience = 5 * time.Minute
)

// Settings are the settings of the provider modal.
type Settings struct {
	TokenID        string         `yaml:"token_id" alias:"MODAL_TOKEN_ID" doc:"id of the token, ak-...; the profile's when empty"`
	TokenSecret    secretref.Ref  `yaml:"token_secret" alias:"MODAL_TOKEN_SECRET" doc:"secret of the token, as-...: env:NAME or file:/path; the profile's when empty"`
	Profile        string         `yaml:"profile" alias:"MODAL_PROFILE" doc:"table of ~/.modal.toml with the token, environment and server_url that are not set here; the active one when empty"`
	Environment    string         `yaml:"environment" alias:"MODAL_ENVIRONMENT" doc:"environment of the workspace; the profile's when empty, and without one the workspace's default"`
	ServerURL      string         `yaml:"server_url" alias:"MODAL_SERVER_URL" doc:"URL of Modal; the profile's when empty, and without one the public service"`
	App            string         `yaml:"app" doc:"app of sandboxes, created if it does not exist; prefix when empty"`
	AppPerProject  bool           `yaml:"app_per_project" doc:"give each project an app of its own, whose name begins with app"`
	Prefix         string         `yaml:"prefix" doc:"beginning of the names of all objects; servers that share an environment but not their sandboxes need different ones"`
	Image          string         `yaml:"image" doc:"default image of sandboxes"`
	Commands       []string       `yaml:"commands" doc:"lines of a Dockerfile that Modal adds to each image, such as RUN pip install numpy; Modal caches the results"`
	RegistrySecret string         `yaml:"registry_secret" doc:"Secret with REGISTRY_USERNAME and REGISTRY_PASSWORD, for private images"`
	Secrets        []string       `yaml:"secrets" doc:"Secrets whose variables every sandbox has"`
	Buckets        []string       `yaml:"buckets" doc:"buckets that every sandbox mounts: NAME:/path or NAME/prefix/:/path, with :ro at the end for read-only"`
	BucketSecret   string         `yaml:"bucket_secret" doc:"Secret with the credentials of buckets; none for public ones"`
	BucketEndpoint string         `yaml:"bucket_endpoint" doc:"URL of buckets outside AWS"`
	GPU            string         `yaml:"gpu" doc:"type of the GPUs that --gpus counts, such as A100; any when empty"`
	Cloud          string         `yaml:"cloud" doc:"cloud that runs sandboxes, such as aws; any when empty"`
	Regions        []string       `yaml:"regions" doc:"regions that run sandboxes, such as us-east; any when empty"`
	Ephemeral      bool           `yaml:"ephemeral" doc:"create no volumes: the files of a sandbox are lost with it"`
	Tunnels        string         `yaml:"tunnels" form:"off tls tcp" doc:"what a published port becomes: tls is a public tunnel with TLS, tcp a public tunnel of plain TCP; off refuses published ports"`
	Patience       atoll.Duration `yaml:"patience" doc:"longest time to build an image, and to place a sandbox, such as 5m"`
	Guest          string         `yaml:"guest" form:"path" doc:"Atoll's program for sandboxes, built for linux/amd64; docker.guest's when empty"`
}

// Default returns the default settings.
func Default() Settings {
	return Settings{Prefix: "atoll", Image: DefaultImage, Tunnels: "off", Patience: atoll.Duration(DefaultPatience)}
}

// Check calls bad with the key of each invalid value and the error, and with a nil error for
// valid ones.
func (m *Settings) Check(bad func(key string, err error)) {
	_, err := m.ParseBuckets()
	bad("modal.buckets", err)
	if m.Patience <= 0 {
		bad("modal.patience", fmt.Errorf("%s: must be positive", m.Patience))
	}
}

// ParseBuckets parses Buckets.
func (m *Settings) ParseBuckets() (list []Bucket, err error) {
	for _, text := range m.Buckets {
		rest, readOnly := strings.CutSuffix(text, ":ro")
		name, at, ok := strings.Cut(rest, ":")
		name, prefix, _ := strings.Cut(name, "/")
		b := Bucket{Name: name, Prefix: prefix, Path: at, Endpoint: m.BucketEndpoint, Secret: m.BucketSecret, ReadOnly: readOnly}
		if !ok {
			return nil, fmt.Errorf("%q: write it like NAME:/mnt/data, NAME/prefix/:/mnt/data or NAME:/mnt/data:ro", text)
		}
		if err := b.Check(); err != nil {
			return nil, err
		}
		list = append(list, b)
	}
	return list, nil
}

// A Bucket is a mounted bucket of S3, R2 or Google Cloud Storage.
type Bucket struct {
	Name, Path string // name of the bucket, and the path of its mount
	Prefix     string // of the keys that are mounted, without this prefix
	Endpoint   string // URL, for buckets outside AWS
	Secret     string // name of a Secret with its credentials
	ReadOnly   bool
}

// Check returns an error if the bucket's settings are invalid.
func (b *Bucket) Check() error {
	switch {
	case b.Name == "":
		return fmt.Errorf("a bucket without a name")
	case !path.IsAbs(b.Path) || path.Clean(b.Path) != b.Path || b.Path == "/":
		return fmt.Errorf("bucket %s: path %q: say where it is mounted, like /mnt/%[1]s", b.Name, b.Path)
	case b.Path == atoll.DefaultWorkdir || OverGuest(b.Path):
		return fmt.Errorf("bucket %s: path %s is taken: mount it elsewhere", b.Name, b.Path)
	case b.Prefix != "" && !strings.HasSuffix(b.Prefix, "/"):
		return fmt.Errorf("bucket %s: prefix %q: end it in '/'", b.Name, b.Prefix)
	}
	return nil
}

// GuestDir is the directory of the guest's program in every sandbox.
const GuestDir = "/.atoll-guest"

// OverGuest reports whether a mount at target would hide the guest, or be on its Volume, which
// is read-only. The only directory above is the root directory, over which no mount is allowed.
func OverGuest(target string) bool {
	return strings.HasPrefix(path.Clean(target)+"/", GuestDir+"/")
}
