package sshd

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// A grant is an account with the permissions of a key.
type grant struct {
	account auth.Account
	pty     bool // terminals
	forward bool // connections to ports inside
}

// A keyring is a file of authorized keys: grants by the wire form of the keys.
type keyring map[string]grant

// maxKeys is the most bytes of a file of authorized keys.
const maxKeys = 1 << 20

// CheckKeys returns an ErrInvalid that lists each line of a file of authorized keys
// without a usable key, and its problem; ErrNotExist if there is no such file, and
// ErrDenied if others may change it.
//
// A line may begin with these options of OpenSSH: restrict, and pty and port-forwarding
// with or without "no-"; and those for agents, X11 and user-rc, which are not supported
// anyway; and with account="NAME", account="NAME:ROLE" or
// account="NAME:project:PROJECT+PROJECT", which sets the key's account, by default the
// default account; see auth.Account. A line with any other option is unusable, since
// the option may restrict the key in an unknown way.
func CheckKeys(path string) error {
	_, problems, err := readKeys(path)
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		return atoll.E(opKeys, path, atoll.ErrInvalid, errors.Join(problems...))
	}
	return nil
}

const opKeys = "ssh authorized keys"

// readKeys reads the file; problems are the unusable lines.
func readKeys(path string) (keyring, []error, error) {
	f, err := fsutil.OpenOwned(opKeys, path, 0o022)
	if errors.Is(err, atoll.ErrNotExist) {
		return nil, nil, atoll.Errorf(opKeys, path, atoll.ErrNotExist,
			"no such file: create it with the public keys that may log in, one per line, like that of ~/.ssh/id_ed25519.pub")
	}
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxKeys+1))
	if err != nil {
		return nil, nil, atoll.E(opKeys, path, atoll.ErrInternal, err)
	}
	if len(data) > maxKeys {
		return nil, nil, atoll.Errorf(opKeys, path, atoll.ErrInvalid, "file is longer than %d bytes", maxKeys)
	}
	keys, problems := parseKeys(data)
	return keys, problems, nil
}

func parseKeys(data []byte) (keyring, []error) {
	keys := keyring{}
	var problems []error
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, maxKeys+1)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		key, g, err := parseKey(line)
		if err != nil {
			problems = append(problems, fmt.Errorf("line %d: %w", n, err))
			continue
		}
		wire := string(key.Marshal())
		if _, twice := keys[wire]; !twice { // as with OpenSSH, the first line counts
			keys[wire] = g
		}
	}
	return keys, problems
}

// parseKey parses one line.
func parseKey(line []byte) (ssh.PublicKey, grant, error) {
	key, _, options, _, err := ssh.ParseAuthorizedKey(line)
	if err != nil {
		return nil, grant{}, errors.New("not a public key")
	}
	if _, ok := key.(*ssh.Certificate); ok {
		return nil, grant{}, errors.New("certificates are not supported: list the key itself")
	}
	g := grant{account: auth.Account{}.WithDefaults(), pty: true, forward: true}
	for _, option := range options {
		if err := g.applyOption(option); err != nil {
			return nil, grant{}, err
		}
	}
	return key, g, nil
}

// applyOption applies an option of a line; later options override earlier ones.
func (g *grant) applyOption(option string) error {
	name, value, _ := strings.Cut(option, "=")
	switch name = strings.ToLower(name); name {
	case "restrict":
		g.pty, g.forward = false, false
	case "pty", "no-pty":
		g.pty = name == "pty"
	case "port-forwarding", "no-port-forwarding":
		g.forward = name == "port-forwarding"
	case "agent-forwarding", "no-agent-forwarding", "x11-forwarding", "no-x11-forwarding", "user-rc", "no-user-rc":
	case "account":
		account, err := parseAccount(value)
		if err != nil {
			return err
		}
		g.account = account
		return nil
	default:
		return fmt.Errorf("option %q is not supported: remove it if the key may be used without it", name)
	}
	if strings.Contains(option, "=") {
		return fmt.Errorf("option %q takes no value", name)
	}
	return nil
}

// parseAccount parses an argument of auth.ParseAccount, in quotes or not.
func parseAccount(value string) (auth.Account, error) {
	if len(value) > 1 && value[0] == '"' && value[len(value)-1] == '"' {
		value = value[1 : len(value)-1]
	}
	a, err := auth.ParseAccount(value)
	if err != nil {
		return a, fmt.Errorf(`account %q: write it like account="NAME", account="NAME:ROLE" or account="NAME:project:PROJECT+PROJECT"`, value)
	}
	return a.WithDefaults(), nil
}

// grantKey is the key of the login in the connection's permissions.
type grantKey struct{}

var errUnknownKey = errors.New("the key is not authorized")

// authorizeKey checks whether a key may log in, whatever the user name. The answer
// doesn't depend on the name, so clients without a key learn nothing about sandboxes.
func (s *Server) authorizeKey(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
	keys, problems, err := readKeys(s.opts.AuthorizedKeys)
	if err != nil {
		s.log.Error("ssh: nobody can log in", "err", err)
		return nil, errUnknownKey
	}
	for _, p := range problems {
		s.log.Warn("ssh: ignoring an unusable authorized key", "file", s.opts.AuthorizedKeys, "err", p)
	}
	g, ok := keys[string(key.Marshal())]
	if !ok {
		return nil, fmt.Errorf("%s: %w", ssh.FingerprintSHA256(key), errUnknownKey)
	}
	return &ssh.Permissions{ExtraData: map[any]any{grantKey{}: login{g, ssh.FingerprintSHA256(key)}}}, nil
}

// A login is the key of a connection, with its grant.
type login struct {
	grant
	fingerprint string
}
