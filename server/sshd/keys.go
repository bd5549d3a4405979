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

// A grant is what a key may do, and for whom.
type grant struct {
	account auth.Account
	pty     bool // terminals
	forward bool // connections to ports inside
}

// A keyring is a file of authorized keys: by the wire form of each, its grant.
type keyring map[string]grant

// maxKeys is the largest file of authorized keys.
const maxKeys = 1 << 20

// CheckKeys reports, as ErrInvalid, each line of a file of authorized keys that
// lets nobody in, and why; and with ErrNotExist and ErrDenied that there is no
// such file, or that others may change it.
//
// The options that a line may begin with are OpenSSH's restrict, and pty and
// port-forwarding with or without "no-"; those for agents, X11 and user-rc, which
// there are none of; and account="NAME", account="NAME:ROLE" or
// account="NAME:project:PROJECT+PROJECT", which says on whose behalf the key is used,
// the default account unless given; see auth.Account. A line with any
// other one lets nobody in: what it would have forbidden is not known here.
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

// readKeys reads the file; problems are the lines that count for nothing.
func readKeys(path string) (keyring, []error, error) {
	f, err := fsutil.OpenOwned(opKeys, path, 0o022)
	if errors.Is(err, atoll.ErrNotExist) {
		return nil, nil, atoll.Errorf(opKeys, path, atoll.ErrNotExist,
			"there is no such file: put the public keys into it that may log in, one in each line, like that of ~/.ssh/id_ed25519.pub")
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
		return nil, nil, atoll.Errorf(opKeys, path, atoll.ErrInvalid, "it is longer than %d bytes", maxKeys)
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

// parseKey reads one line.
func parseKey(line []byte) (ssh.PublicKey, grant, error) {
	key, _, options, _, err := ssh.ParseAuthorizedKey(line)
	if err != nil {
		return nil, grant{}, errors.New("it is no public key")
	}
	if _, ok := key.(*ssh.Certificate); ok {
		return nil, grant{}, errors.New("it is a certificate: list the key itself")
	}
	g := grant{account: auth.Account{}.WithDefaults(), pty: true, forward: true}
	for _, option := range options {
		if err := g.apply(option); err != nil {
			return nil, grant{}, err
		}
	}
	return key, g, nil
}

// apply does what an option of a line says, in the order in which they come.
func (g *grant) apply(option string) error {
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
		return fmt.Errorf("option %q is not supported: take it out if the key may be used without it", name)
	}
	if strings.Contains(option, "=") {
		return fmt.Errorf("option %q takes no value", name)
	}
	return nil
}

// parseAccount reads what auth.ParseAccount does, in quotes or not.
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

// grantKey is what a login hands on to the connection.
type grantKey struct{}

var errUnknownKey = errors.New("the key is not authorized")

// authorize says whether a key may log in, whatever the user name. The answer is
// the same for all names: who has no key learns nothing about sandboxes.
func (s *Server) authorize(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
	keys, problems, err := readKeys(s.opts.AuthorizedKeys)
	if err != nil {
		s.log.Error("ssh: nobody can log in", "err", err)
		return nil, errUnknownKey
	}
	for _, p := range problems {
		s.log.Warn("ssh: an authorized key that is of no use", "file", s.opts.AuthorizedKeys, "err", p)
	}
	g, ok := keys[string(key.Marshal())]
	if !ok {
		return nil, fmt.Errorf("%s: %w", ssh.FingerprintSHA256(key), errUnknownKey)
	}
	return &ssh.Permissions{ExtraData: map[any]any{grantKey{}: login{g, ssh.FingerprintSHA256(key)}}}, nil
}

// A login is who has come.
type login struct {
	grant
	fingerprint string
}
