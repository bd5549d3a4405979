package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/moby/moby/client"
)

// dial returns a client of the engine that opts name. Which version of the
// API both know is found out with the first request.
func dial(opts Options) (*client.Client, error) {
	with := []client.Opt{client.WithUserAgent("atoll")}
	switch {
	case opts.Dial != nil:
		reach := func(ctx context.Context, _, _ string) (net.Conn, error) { return opts.Dial(ctx) }
		with = append(with, client.WithHost("tcp://engine"), client.WithDialContext(reach))
	case opts.Host != "":
		with = append(with, client.WithTLSClientConfigFromEnv(), client.WithHost(opts.Host))
	case os.Getenv("DOCKER_HOST") != "":
		with = append(with, client.FromEnv)
	default:
		more, err := fromContext()
		if err != nil {
			return nil, err
		}
		with = append(with, more...)
	}
	return client.New(with...)
}

// fromContext reads what docker's command line calls a context: DOCKER_CONTEXT,
// else the one that its configuration names as current. "default" is the
// engine's own address.
func fromContext() ([]client.Opt, error) {
	dir := os.Getenv("DOCKER_CONFIG")
	if home, err := os.UserHomeDir(); dir == "" && err == nil {
		dir = filepath.Join(home, ".docker")
	}
	name := os.Getenv("DOCKER_CONTEXT")
	if name == "" {
		var config struct{ CurrentContext string }
		data, err := os.ReadFile(filepath.Join(dir, "config.json"))
		if err == nil && json.Unmarshal(data, &config) == nil {
			name = config.CurrentContext
		}
	}
	if name == "" || name == "default" {
		return nil, nil
	}
	sum := sha256.Sum256([]byte(name))
	key := hex.EncodeToString(sum[:])
	data, err := os.ReadFile(filepath.Join(dir, "contexts", "meta", key, "meta.json"))
	if err != nil {
		return nil, fmt.Errorf("docker context %q: %w; see docker context ls", name, err)
	}
	var meta struct {
		Endpoints map[string]struct{ Host string }
	}
	if err := json.Unmarshal(data, &meta); err != nil {
		return nil, fmt.Errorf("docker context %q: %w", name, err)
	}
	host := meta.Endpoints["docker"].Host
	if host == "" {
		return nil, fmt.Errorf("docker context %q names no engine", name)
	}
	with := []client.Opt{client.WithHost(host)}
	tls := filepath.Join(dir, "contexts", "tls", key, "docker")
	if _, err := os.Stat(filepath.Join(tls, "ca.pem")); err == nil {
		with = append([]client.Opt{client.WithTLSClientConfig(
			filepath.Join(tls, "ca.pem"), filepath.Join(tls, "cert.pem"), filepath.Join(tls, "key.pem"))}, with...)
	}
	return with, nil
}
