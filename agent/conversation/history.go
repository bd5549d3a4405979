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

// A record of each turn is kept beside the versions of the files, so that a
// conversation whose store is lost is whole again on another machine.

// A chapter is what is kept of one turn.
type chapter struct {
	Turn         string             `json:"turn"`
	Number       int64              `json:"number"`
	Part         int                `json:"part,omitempty"` // of the turn, from 0; the last one has the Usage
	Ended        time.Time          `json:"ended"`
	Conversation agent.Conversation `json:"conversation"`
	Usage        agent.TokenUsage   `json:"usage"`
	Messages     []*agent.Message   `json:"messages"`
}

// The bounds of chapters, in bytes: JSON may be six times as long as what it is of.
const (
	maxSaid    = 16 << 20  // of what was said; what is more begins another one
	maxChapter = 256 << 20 // of one that is read
)

// historyPrefix is where the chapters of a conversation are, below the prefix of the
// place: templates may have one place for many conversations, and for many accounts.
func historyPrefix(c *agent.Conversation) string { return "history/" + c.Account + "/" + c.ID + "/" }

// archiving is how long writing one down may take.
const archiving = time.Minute

// atPrompt is where the prompt is in a turn.
const atPrompt = "0"

// messageKey is that of a message of a turn.
func messageKey(turn, at string) string {
	sum := sha256.Sum256([]byte(turn + "/" + at))
	return hex.EncodeToString(sum[:16])
}

// keep notes a message for the history. What is too much for one chapter becomes several,
// which are the same whoever finishes the turn.
func (t *turn) keep(b *box, m *agent.Message) {
	if !b.pushes() {
		return
	}
	b.said = append(b.said, m)
	if b.size += sizeOf(m); b.size > maxSaid {
		t.archive(b, output.Summary{})
	}
}

// archive keeps what was said in the turn since the last time.
func (t *turn) archive(b *box, sum output.Summary) {
	if !b.pushes() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), archiving)
	defer cancel()
	c := chapter{Turn: t.id, Number: t.turns, Part: b.part, Ended: time.Now(), Conversation: t.conversation, Usage: sum.Usage, Messages: b.said}
	c.Conversation.Turn = nil
	b.said, b.size, b.part = nil, 0, b.part+1
	err := c.write(ctx, b.place)
	if err != nil {
		t.v.log.Error("conversation: the history of a turn is in the store only", "conversation", t.conversation.ID, "turn", t.id, "err", err)
	}
}

// write puts c into the bucket. Chapters sort by their numbers, and by their parts.
func (c *chapter) write(ctx context.Context, p *Place) error {
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	_, err = p.Bucket.Put(ctx, p.key(fmt.Sprintf("%s%012d-%s-%06d.json", historyPrefix(&c.Conversation), c.Number, c.Turn, c.Part)), bytes.NewReader(data), int64(len(data)), objectstore.Condition{})
	return err
}

// key is one of the place.
func (p *Place) key(name string) string {
	if p.Prefix == "" {
		return name
	}
	return p.Prefix + "/" + name
}

// remember brings the messages of a conversation back that the store does not have, from
// where its files are kept.
func (t *turn) remember(ctx context.Context, b *box) error {
	for o, err := range b.place.Bucket.List(ctx, b.place.key(historyPrefix(&t.conversation))) {
		if err != nil {
			return err
		}
		c, err := readChapter(ctx, b.place, o.Key)
		if err != nil {
			return err
		}
		if c == nil {
			t.v.log.Warn("conversation: a turn of its history cannot be read", "conversation", t.conversation.ID, "key", o.Key)
			continue
		}
		if err := t.recall(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// erase deletes the history of a conversation that has a sandbox.
func (v *Service) erase(ctx context.Context, c *agent.Conversation) error {
	tpl, err := v.opts.Templates.Get(c.Template, c.Agent)
	if err != nil {
		return err
	}
	b, err := v.open(ctx, tpl, c, &store.AgentSandbox{Sandbox: agent.Sandbox{ID: c.Sandbox}})
	if err != nil || b.place == nil {
		return err
	}
	var keys []string
	for o, err := range b.place.Bucket.List(ctx, b.place.key(historyPrefix(c))) {
		if err != nil {
			return err
		}
		keys = append(keys, o.Key)
	}
	return b.place.Bucket.Delete(ctx, keys...)
}

// readChapter reads one, nil if it is none.
func readChapter(ctx context.Context, p *Place, key string) (*chapter, error) {
	o, _, err := p.Bucket.Get(ctx, key, 0, -1)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	data, err := io.ReadAll(io.LimitReader(o, maxChapter))
	if err != nil {
		return nil, err
	}
	var c chapter
	if json.Unmarshal(data, &c) != nil || c.Turn == "" || c.Number < 1 {
		return nil, nil
	}
	return &c, nil
}

// recall writes a chapter into the store.
func (t *turn) recall(ctx context.Context, c *chapter) error {
	for _, m := range c.Messages {
		m.Account, m.Conversation, m.Turn = t.conversation.Account, t.conversation.ID, c.Turn
		if err := t.v.store.AddMessage(ctx, m); err != nil {
			return err
		}
	}
	if c.Usage != (agent.TokenUsage{}) { // tokens of a turn are added once, and only its last part has them
		if err := t.v.store.AddUsage(ctx, t.conversation.Account, t.conversation.ID, c.Number, c.Usage); err != nil {
			return err
		}
	}
	if c.Number >= t.turns {
		t.turns = c.Number + 1
		return t.update(func(s *store.Conversation) { s.Turns = t.turns })
	}
	return nil
}
