package secretstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
)

const (
	vaultTimeout  = 10 * time.Second // of each request
	maxVaultReply = 1 << 20          // bytes of a response
	maxVaultToken = 64 << 10         // bytes of the file with the token
	maxRedirects  = 3
)

// A vault is a server of Vault or OpenBao, which is asked with a token.
type vault struct {
	request
	address *url.URL
	token   string
	client  *http.Client
}

// readVault returns the value at MOUNT/PATH#FIELD in a key-value engine of version 1 or 2.
func (r request) readVault(ctx context.Context) (string, error) {
	at := strings.LastIndexByte(r.rest, '#')
	if at < 0 || r.rest[at+1:] == "" {
		return "", r.newError(atoll.ErrInvalid, "name the field after the path, like vault:secret/ci#token")
	}
	name, field := strings.Trim(r.rest[:at], "/"), r.rest[at+1:]
	if !strings.Contains(name, "/") || path.Clean(name) != name || strings.HasPrefix(name, "../") {
		return "", r.newError(atoll.ErrInvalid, "write the path of the engine and of the secret, like vault:secret/ci#token")
	}
	v, err := r.openVault()
	if err != nil {
		return "", err
	}
	defer v.client.CloseIdleConnections()
	mount, second, err := v.findEngine(ctx, name)
	if err != nil {
		return "", err
	}
	if second {
		name = path.Join(mount, "data", strings.TrimPrefix(name, mount))
	}
	return v.readField(ctx, name, second, field)
}

// openVault returns the server that the variables of Vault's own tools name.
func (r request) openVault() (*vault, error) {
	text := os.Getenv("VAULT_ADDR")
	if text == "" {
		return nil, r.newError(atoll.ErrUnavailable, "set VAULT_ADDR to the URL of the server, where Atoll runs")
	}
	address, err := url.Parse(text)
	if err != nil || address.Host == "" || address.User != nil || !slices.Contains([]string{"http", "https"}, address.Scheme) {
		return nil, r.newError(atoll.ErrInvalid, "VAULT_ADDR must be a URL like https://vault.example.com:8200")
	}
	token, err := r.findVaultToken()
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if file := os.Getenv("VAULT_CACERT"); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, r.newError(atoll.ErrInvalid, "VAULT_CACERT: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, r.newError(atoll.ErrInvalid, "VAULT_CACERT: %s has no certificate in PEM", file)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	}
	client := &http.Client{Transport: transport, Timeout: vaultTimeout, CheckRedirect: checkRedirect}
	return &vault{request: r, address: address, token: token, client: client}, nil
}

// checkRedirect lets a standby server send the request to the active one, and never the token out of TLS.
func checkRedirect(to *http.Request, before []*http.Request) error {
	switch {
	case len(before) > maxRedirects:
		return errors.New("too many redirects")
	case before[0].URL.Scheme == "https" && to.URL.Scheme != "https":
		return errors.New("it redirects from https to http")
	}
	return nil
}

// findVaultToken returns the token of the environment, or the one that `vault login` has stored.
func (r request) findVaultToken() (string, error) {
	if token := strings.TrimSpace(os.Getenv("VAULT_TOKEN")); token != "" {
		return token, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", r.newError(atoll.ErrDenied, "there is no token: set VAULT_TOKEN")
	}
	f, err := os.Open(filepath.Join(home, ".vault-token"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", r.newError(atoll.ErrDenied, "there is no token: set VAULT_TOKEN, or run vault login")
	}
	if err != nil {
		return "", r.newError(atoll.ErrDenied, "read the token: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxVaultToken))
	token := strings.TrimSpace(string(data))
	if err != nil || token == "" || strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
		return "", r.newError(atoll.ErrDenied, "%s has no token: run vault login", f.Name())
	}
	return token, nil
}

// findEngine returns the path of the engine that has the secret with that name, and whether its version is 2. A server without that
// question has version 1 only.
func (v *vault) findEngine(ctx context.Context, name string) (mount string, second bool, err error) {
	var reply struct {
		Data struct {
			Path    string            `json:"path"`
			Options map[string]string `json:"options"`
		} `json:"data"`
	}
	status, err := v.getReply(ctx, "sys/internal/ui/mounts/"+name, &reply)
	switch {
	case err != nil:
		return "", false, err
	case status == http.StatusNotFound:
		return "", false, nil
	case status != http.StatusOK:
		return "", false, v.describeStatus(status, name)
	}
	mount = strings.TrimSuffix(reply.Data.Path, "/")
	second = reply.Data.Options["version"] == "2"
	if second && !strings.HasPrefix(name, mount+"/") {
		return "", false, v.newError(atoll.ErrInvalid, "write the path of a secret after that of the engine, %s", mount)
	}
	return mount, second, nil
}

// readField returns a field of the secret with that name. The response of version 2 has the fields one level deeper.
func (v *vault) readField(ctx context.Context, name string, second bool, field string) (string, error) {
	var reply struct {
		Data map[string]json.RawMessage `json:"data"`
	}
	status, err := v.getReply(ctx, name, &reply)
	if err != nil {
		return "", err
	}
	if status != http.StatusOK {
		return "", v.describeStatus(status, name)
	}
	fields := reply.Data
	if second {
		fields = nil
		if json.Unmarshal(reply.Data["data"], &fields) != nil || fields == nil { // it was deleted
			return "", v.describeStatus(http.StatusNotFound, name)
		}
	}
	return v.pickField(fields, field)
}

// getReply sends a request and decodes the response into reply if the status is 200.
func (v *vault) getReply(ctx context.Context, name string, reply any) (status int, err error) {
	to := *v.address
	to.Path, to.RawQuery, to.Fragment = path.Join("/", v.address.Path, "v1", name), "", ""
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, to.String(), nil)
	if err != nil {
		return 0, v.newError(atoll.ErrInvalid, "%w", err)
	}
	req.Header.Set("X-Vault-Token", v.token)
	req.Header.Set("X-Vault-Request", "true") // agents of Vault can refuse requests without it
	if namespace := os.Getenv("VAULT_NAMESPACE"); namespace != "" {
		req.Header.Set("X-Vault-Namespace", namespace)
	}
	resp, err := v.client.Do(req)
	if err != nil {
		var at *url.Error
		if errors.As(err, &at) {
			err = at.Err
		}
		return 0, v.newError(atoll.ErrUnavailable, "%s does not answer: check VAULT_ADDR and VAULT_CACERT: %w", v.address.Redacted(), err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return resp.StatusCode, nil
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxVaultReply+1))
	switch {
	case err != nil:
		return 0, v.newError(atoll.ErrUnavailable, "%s broke off its response: %w", v.address.Redacted(), err)
	case len(data) > maxVaultReply:
		return 0, v.newError(atoll.ErrInvalid, "the response of %s is longer than %d bytes", v.address.Redacted(), maxVaultReply)
	case json.Unmarshal(data, reply) != nil: // its error could have a part of the value
		return 0, v.newError(atoll.ErrUnavailable, "the response of %s is not Vault's: check VAULT_ADDR", v.address.Redacted())
	}
	return resp.StatusCode, nil
}

// describeStatus returns the error for the status of a response about the path name.
func (v *vault) describeStatus(status int, name string) error {
	server := v.address.Redacted()
	switch status {
	case http.StatusForbidden:
		return v.newError(atoll.ErrDenied, "%s denies the token: it has expired, or no policy of it allows read on %s", server, name)
	case http.StatusNotFound:
		return v.newError(atoll.ErrNotExist, "%s has no secret at %s: check the path and VAULT_NAMESPACE", server, name)
	case http.StatusServiceUnavailable:
		return v.newError(atoll.ErrUnavailable, "%s is sealed, or in maintenance: unseal it", server)
	case http.StatusTooManyRequests:
		return v.newError(atoll.ErrUnavailable, "%s gets too many requests", server)
	}
	kind := atoll.ErrUnavailable
	if status < http.StatusInternalServerError {
		kind = atoll.ErrInvalid
	}
	return v.newError(kind, "%s answered with status %d: check VAULT_ADDR and the path %s", server, status, name)
}
