package docker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/moby/client"
)

// newClient returns a client of the engine that opts select. Its first request negotiates the
// API version.
func newClient(opts Options) (*client.Client, error) {
	with := []client.Opt{client.WithUserAgent("atoll")}
	switch {
	case opts.Dial != nil:
		reach := func(ctx context.Context, _, _ string) (net.Conn, error) { return opts.Dial(ctx) }
		with = append(with, client.WithHost("tcp://engine"), client.WithDialContext(reach))
	case opts.Host != "":
		if err := checkHost(opts.Host); err != nil {
			return nil, err
		}
		if !strings.HasPrefix(opts.Host, "unix:") && !strings.HasPrefix(opts.Host, "npipe:") {
			with = append(with, client.WithTLSClientConfigFromEnv())
		}
		with = append(with, client.WithHost(opts.Host))
	case os.Getenv("DOCKER_HOST") != "":
		if err := checkHost(os.Getenv("DOCKER_HOST")); err != nil {
			return nil, fmt.Errorf("DOCKER_HOST: %w", err)
		}
		with = append(with, client.FromEnv)
	default:
		more, err := contextOptions()
		if err != nil {
			return nil, err
		}
		with = append(with, more...)
	}
	return client.New(with...)
}

// checkHost rejects addresses that the client accepts but cannot reach.
func checkHost(host string) error {
	scheme, _, ok := strings.Cut(host, "://")
	switch {
	case !ok:
		return fmt.Errorf("address %q: write it like unix:///var/run/docker.sock or tcp://host:2376", host)
	case scheme == "ssh":
		return fmt.Errorf("address %q: ssh is not supported: forward the engine's socket (ssh -L /tmp/docker.sock:/var/run/docker.sock HOST) and use unix:///tmp/docker.sock", host)
	case !slices.Contains([]string{"unix", "tcp", "http", "https", "npipe"}, scheme):
		return fmt.Errorf("address %q: use unix, tcp or npipe", host)
	}
	return nil
}

// contextOptions reads the docker context that DOCKER_CONTEXT or docker's configuration names.
// It returns nil for "default", which is the engine's standard address.
func contextOptions() ([]client.Opt, error) {
	dir := os.Getenv("DOCKER_CONFIG")
	if home, err := os.UserHomeDir(); dir == "" && err == nil {
		dir = filepath.Join(home, ".docker")
	}
	name, err := currentContext(dir)
	if err != nil || name == "" || name == "default" {
		return nil, err
	}
	with, err := readContext(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.New("not found: see docker context ls")
	}
	if err != nil {
		return nil, fmt.Errorf("docker context %q: %w", name, err)
	}
	return with, nil
}

func currentContext(dir string) (string, error) {
	if name := os.Getenv("DOCKER_CONTEXT"); name != "" {
		return name, nil
	}
	file := filepath.Join(dir, "config.json")
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	var config struct{ CurrentContext string }
	if err == nil {
		err = json.Unmarshal(data, &config)
	}
	if err != nil {
		return "", fmt.Errorf("docker's configuration %s: %w", file, err)
	}
	return config.CurrentContext, nil
}

func readContext(dir, name string) ([]client.Opt, error) {
	sum := sha256.Sum256([]byte(name))
	key := hex.EncodeToString(sum[:])
	data, err := os.ReadFile(filepath.Join(dir, "contexts", "meta", key, "meta.json"))
	if err != nil {
		return nil, err
	}
	var meta struct {
		Endpoints map[string]struct {
			Host          string
			SkipTLSVerify bool
		}
	}
	if err := json.Unmarshal(data, &meta); err != nil {
		return nil, err
	}
	end := meta.Endpoints["docker"]
	if end.Host == "" {
		return nil, errors.New("it has no docker endpoint")
	}
	if end.SkipTLSVerify {
		return nil, errors.New("skip-tls-verify is not supported: give the context the engine's ca.pem")
	}
	if err := checkHost(end.Host); err != nil {
		return nil, err
	}
	var files [3]string
	for i, file := range []string{"ca.pem", "cert.pem", "key.pem"} {
		file = filepath.Join(dir, "contexts", "tls", key, "docker", file)
		if _, err := os.Stat(file); err == nil {
			files[i] = file
		}
	}
	with := []client.Opt{client.WithHost(end.Host)}
	if cmp.Or(files[:]...) != "" { // before the host, which adds to the TLS configuration
		with = []client.Opt{client.WithTLSClientConfig(files[0], files[1], files[2]), with[0]}
	}
	return with, nil
}
