package conversation

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/agent/output"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// The history of a conversation is in object storage, next to the versions of its files. If
// the store is lost, another machine restores the messages from it.

// A historyFile is the JSON object with the history of one turn, or of a part of one.
type historyFile struct {
	Turn         string             `json:"turn"`
	Number       int64              `json:"number"`
	Part         int                `json:"part,omitempty"` // of the turn, from 0; the last part has the Usage
	Ended        time.Time          `json:"ended"`
	Conversation agent.Conversation `json:"conversation"`
	Usage        agent.TokenUsage   `json:"usage"`
	Messages     []*agent.Message   `json:"messages"`
}

// Limits of history files, in bytes. JSON may be six times as long as the text in it.
const (
	maxHistoryMessages = 16 << 20  // the texts of messages after which the next file begins
	maxHistoryFile     = 256 << 20 // the size of a file to read
)

// historyPrefix returns the prefix of the history of a conversation, relative to the prefix of
// its place. It has the account and the id because templates may share a place between
// conversations and accounts.
func historyPrefix(c *agent.Conversation) string { return "history/" + c.Account + "/" + c.ID + "/" }

// historyTimeout limits the write of a history file.
const historyTimeout = time.Minute

// promptPosition is the position of the prompt in a turn, for messageKey.
const promptPosition = "0"

// messageKey returns the key of the message at a position of a turn.
func messageKey(turn, at string) string {
	sum := sha256.Sum256([]byte(turn + "/" + at))
	return hex.EncodeToString(sum[:16])
}

// addToHistory adds a message to the turn's history. It starts another file when there are too
// many messages for one. The files are the same if another program finishes the turn.
func (t *turn) addToHistory(sb *sandbox, m *agent.Message) {
	if !sb.pushesFiles() {
		return
	}
	sb.historyMessages = append(sb.historyMessages, m)
	if sb.historyBytes += messageSize(m); sb.historyBytes > maxHistoryMessages {
		t.saveHistory(sb, output.Summary{})
	}
}

// saveHistory writes the messages since its last call to object storage.
func (t *turn) saveHistory(sb *sandbox, sum output.Summary) {
	if !sb.pushesFiles() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), historyTimeout)
	defer cancel()
	c := historyFile{Turn: t.id, Number: t.number, Part: sb.historyFiles, Ended: time.Now(), Conversation: t.conversation, Usage: sum.Usage, Messages: sb.historyMessages}
	c.Conversation.Turn = nil
	sb.historyMessages, sb.historyBytes, sb.historyFiles = nil, 0, sb.historyFiles+1
	err := c.putFile(ctx, sb.place)
	if err != nil {
		t.service.log.Error("conversation: cannot save the history of a turn", "conversation", t.conversation.ID, "turn", t.id, "err", err)
	}
}

// putFile writes the file to the bucket. The keys sort by the numbers of turns and parts.
func (c *historyFile) putFile(ctx context.Context, p *Place) error {
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	_, err = p.Bucket.Put(ctx, p.objectKey(fmt.Sprintf("%s%012d-%s-%06d.json", historyPrefix(&c.Conversation), c.Number, c.Turn, c.Part)), bytes.NewReader(data), int64(len(data)), objectstore.Condition{})
	return err
}

// objectKey returns the key of the object with a name below the prefix.
func (p *Place) objectKey(name string) string {
	if p.Prefix == "" {
		return name
	}
	return p.Prefix + "/" + name
}

// restoreHistory copies messages from object storage to the store, which may be new.
func (t *turn) restoreHistory(ctx context.Context, sb *sandbox) error {
	for o, err := range sb.place.Bucket.List(ctx, sb.place.objectKey(historyPrefix(&t.conversation))) {
		if err != nil {
			return err
		}
		c, err := readHistoryFile(ctx, sb.place, o.Key)
		if err != nil {
			return err
		}
		if c == nil {
			t.service.log.Warn("conversation: cannot read a history file", "conversation", t.conversation.ID, "key", o.Key)
			continue
		}
		if err := t.restoreMessages(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// deleteHistory deletes the history of a conversation that has a sandbox.
func (s *Service) deleteHistory(ctx context.Context, c *agent.Conversation) error {
	tpl, err := s.opts.Templates.Get(c.Template, c.Agent)
	if err != nil {
		return err
	}
	sb, err := s.openSandbox(ctx, tpl, c, &store.AgentSandbox{Sandbox: agent.Sandbox{ID: c.Sandbox}})
	if err != nil || sb.place == nil {
		return err
	}
	var keys []string
	for o, err := range sb.place.Bucket.List(ctx, sb.place.objectKey(historyPrefix(c))) {
		if err != nil {
			return err
		}
		keys = append(keys, o.Key)
	}
	return sb.place.Bucket.Delete(ctx, keys...)
}

// readHistoryFile reads a history file. It returns nil if the object is not a history file.
func readHistoryFile(ctx context.Context, p *Place, key string) (*historyFile, error) {
	o, _, err := p.Bucket.Get(ctx, key, 0, -1)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	data, err := io.ReadAll(io.LimitReader(o, maxHistoryFile))
	if err != nil {
		return nil, err
	}
	var c historyFile
	if json.Unmarshal(data, &c) != nil || c.Turn == "" || c.Number < 1 {
		return nil, nil
	}
	return &c, nil
}

// restoreMessages adds the messages of a history file to the store.
func (t *turn) restoreMessages(ctx context.Context, c *historyFile) error {
	for _, m := range c.Messages {
		m.Account, m.Conversation, m.Turn = t.conversation.Account, t.conversation.ID, c.Turn
		if err := t.service.store.AddMessage(ctx, m); err != nil {
			return err
		}
	}
	if c.Usage != (agent.TokenUsage{}) { // only the last part of a turn has them, since AddUsage counts a turn once
		if err := t.service.store.AddUsage(ctx, t.conversation.Account, t.conversation.ID, c.Number, c.Usage); err != nil {
			return err
		}
	}
	if c.Number >= t.number {
		t.number = c.Number + 1
		return t.updateRecord(func(s *store.Conversation) { s.Turns = t.number })
	}
	return nil
}
