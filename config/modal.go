package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/modal"
)

// Modal are the settings of the provider modal.
type Modal struct {
	TokenID        string         `yaml:"token_id" alias:"MODAL_TOKEN_ID" doc:"the token's id, ak-...; that of the profile when empty"`
	TokenSecret    Secret         `yaml:"token_secret" alias:"MODAL_TOKEN_SECRET" doc:"the token's secret, as-...: env:NAME or file:/path; that of the profile when empty"`
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

func defaultModal() Modal {
	return Modal{Prefix: "atoll", Image: modal.DefaultImage, Tunnels: string(modal.TunnelsOff), Patience: atoll.Duration(modal.DefaultPatience)}
}

// check calls bad with the key of each value that makes no sense.
func (m *Modal) check(bad func(key string, err error)) {
	_, err := m.buckets()
	bad("modal.buckets", err)
	if m.Patience <= 0 {
		bad("modal.patience", fmt.Errorf("%s: must be positive", m.Patience))
	}
}

// buckets reads Buckets.
func (m *Modal) buckets() (list []modal.Bucket, err error) {
	for _, text := range m.Buckets {
		rest, readOnly := strings.CutSuffix(text, ":ro")
		name, at, ok := strings.Cut(rest, ":")
		name, prefix, _ := strings.Cut(name, "/")
		b := modal.Bucket{Name: name, Prefix: prefix, Path: at, Endpoint: m.BucketEndpoint, Secret: m.BucketSecret, ReadOnly: readOnly}
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

// A modalProfile is a table of ~/.modal.toml, which Modal's own programs write.
type modalProfile struct {
	TokenID     string `toml:"token_id"`
	TokenSecret string `toml:"token_secret"`
	Environment string `toml:"environment"`
	ServerURL   string `toml:"server_url"`
	Active      bool   `toml:"active"`
}

// profile is the one to use; it is empty when there is no file, and nobody names one.
func (m *Modal) profile() (modalProfile, error) {
	home, err := os.UserHomeDir()
	file := filepath.Join(home, ".modal.toml")
	var data []byte
	if err == nil {
		data, err = readLimited(file)
	}
	switch none := home == "" || errors.Is(err, fs.ErrNotExist); {
	case err == nil:
	case none && m.Profile == "":
		return modalProfile{}, nil
	case none:
		return modalProfile{}, fmt.Errorf("modal.profile %q: there is no %s: run modal token new, or set modal.token_id and modal.token_secret", m.Profile, file)
	default:
		return modalProfile{}, err
	}
	var all map[string]modalProfile
	if err := toml.Unmarshal(data, &all); err != nil {
		return modalProfile{}, fmt.Errorf("%s: %w: mend it, or move it away and run modal token new", file, err)
	}
	if m.Profile != "" {
		p, ok := all[m.Profile]
		if !ok {
			return p, fmt.Errorf("modal.profile %q: there is no such table in %s", m.Profile, file)
		}
		return p, nil
	}
	for _, p := range all {
		if p.Active {
			return p, nil
		}
	}
	return modalProfile{}, nil
}

func (c *Config) modal(opts Options) (*modal.Options, error) {
	m := &c.Modal
	from, err := m.profile()
	if err != nil {
		return nil, atoll.E("open", "modal", atoll.ErrInvalid, err)
	}
	secret, err := m.TokenSecret.Reveal()
	if err != nil {
		return nil, atoll.E("open", "modal", atoll.ErrInvalid, err)
	}
	buckets, err := m.buckets()
	return &modal.Options{
		TokenID: cmp.Or(m.TokenID, from.TokenID), TokenSecret: cmp.Or(secret, from.TokenSecret),
		Environment: cmp.Or(m.Environment, from.Environment), ServerURL: cmp.Or(m.ServerURL, from.ServerURL),
		App: m.App, AppPerProject: m.AppPerProject, Prefix: m.Prefix,
		Guest: sync.OnceValues(func() ([]byte, error) { return guestProgram(cmp.Or(m.Guest, c.Docker.Guest), c.StateDir) }),
		Image: m.Image, Commands: m.Commands, RegistrySecret: m.RegistrySecret, Secrets: m.Secrets, Buckets: buckets,
		GPU: m.GPU, Cloud: m.Cloud, Regions: m.Regions, Ephemeral: m.Ephemeral, Tunnels: modal.Tunnels(m.Tunnels),
		Patience: time.Duration(m.Patience), Log: opts.Log,
	}, err
}

func openModal(cfg *Config, opts Options) (atoll.Provider, error) {
	o, err := cfg.modal(opts)
	if err != nil {
		return nil, err
	}
	return modal.New(*o)
}
