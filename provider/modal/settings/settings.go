// Package settings has the settings of the provider modal, without Modal's own client: atoll
// reads them, and the program atoll-modal uses them.
package settings

import (
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/secretref"
)

// What is used where nothing is set.
const (
	DefaultImage    = "ubuntu:22.04"
	DefaultPatience = 5 * time.Minute
)

// Settings are the settings of the provider modal.
type Settings struct {
	TokenID        string         `yaml:"token_id" alias:"MODAL_TOKEN_ID" doc:"the token's id, ak-...; that of the profile when empty"`
	TokenSecret    secretref.Ref  `yaml:"token_secret" alias:"MODAL_TOKEN_SECRET" doc:"the token's secret, as-...: env:NAME or file:/path; that of the profile when empty"`
	Profile        string         `yaml:"profile" alias:"MODAL_PROFILE" doc:"table of ~/.modal.toml with what is not set here of token, environment and server_url; the active one when empty"`
	Environment    string         `yaml:"environment" alias:"MODAL_ENVIRONMENT" doc:"environment of the workspace; the profile's when empty, and without one the workspace's default"`
	ServerURL      string         `yaml:"server_url" alias:"MODAL_SERVER_URL" doc:"where Modal is; the profile's when empty, and without one the public service"`
	App            string         `yaml:"app" doc:"app that sandboxes belong to, made when it is missing; prefix when empty"`
	AppPerProject  bool           `yaml:"app_per_project" doc:"each project has an app of its own, whose name begins with app"`
	Prefix         string         `yaml:"prefix" doc:"begins the names of what is made: servers that share an environment and not their sandboxes have different ones"`
	Image          string         `yaml:"image" doc:"image of sandboxes that name none"`
	Commands       []string       `yaml:"commands" doc:"lines of a Dockerfile that Modal builds each image with, like RUN pip install numpy; it keeps what it has built"`
	RegistrySecret string         `yaml:"registry_secret" doc:"Secret with REGISTRY_USERNAME and REGISTRY_PASSWORD, for images that are not public"`
	Secrets        []string       `yaml:"secrets" doc:"Secrets whose variables every sandbox has"`
	Buckets        []string       `yaml:"buckets" doc:"buckets that every sandbox has: NAME:/path, NAME/prefix/:/path, and with :ro behind it to be read only"`
	BucketSecret   string         `yaml:"bucket_secret" doc:"Secret with the credentials of buckets; none for public ones"`
	BucketEndpoint string         `yaml:"bucket_endpoint" doc:"URL of buckets that are not AWS's"`
	GPU            string         `yaml:"gpu" doc:"type of the GPUs that --gpus counts, like A100; any when empty"`
	Cloud          string         `yaml:"cloud" doc:"cloud that sandboxes run in, like aws; any when empty"`
	Regions        []string       `yaml:"regions" doc:"regions that they run in, like us-east; any when empty"`
	Ephemeral      bool           `yaml:"ephemeral" doc:"make no volumes: what a sandbox has ends with it"`
	Tunnels        string         `yaml:"tunnels" form:"off tls tcp" doc:"what a published port becomes: a public tunnel that wants TLS, or one that passes on what comes; off refuses them"`
	Patience       atoll.Duration `yaml:"patience" doc:"how long an image may take to be built, and a sandbox to be placed, like 5m"`
	Guest          string         `yaml:"guest" form:"path" doc:"Atoll's program for sandboxes, built for linux/amd64; docker.guest's when empty"`
}

// Default returns the default settings.
func Default() Settings {
	return Settings{Prefix: "atoll", Image: DefaultImage, Tunnels: "off", Patience: atoll.Duration(DefaultPatience)}
}

// Check calls bad with the key of each value that makes no sense.
func (m *Settings) Check(bad func(key string, err error)) {
	_, err := m.ParseBuckets()
	bad("modal.buckets", err)
	if m.Patience <= 0 {
		bad("modal.patience", fmt.Errorf("%s: must be positive", m.Patience))
	}
}

// ParseBuckets reads Buckets.
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

// A Bucket is one of S3, R2 or Google Cloud Storage that is mounted.
type Bucket struct {
	Name, Path string // the bucket's, and where it is mounted
	Prefix     string // of its keys: what is below it is mounted
	Endpoint   string // of those that are not AWS's
	Secret     string // the name of a Secret with its credentials
	ReadOnly   bool
}

// Check says what is wrong with a bucket.
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

// GuestDir is where the guest's program is in every sandbox.
const GuestDir = "/.atoll-guest"

// OverGuest reports whether what is mounted at target would hide the guest, or be on its
// Volume, which is read only. Above it is only the root directory, which nothing is mounted
// over.
func OverGuest(target string) bool {
	return strings.HasPrefix(path.Clean(target)+"/", GuestDir+"/")
}
