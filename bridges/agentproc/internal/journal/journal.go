// Package journal is the record of what a bridge wrote to its agent: one file, one
// writer, any number of readers.
//
// A record is a fixed header and a body, each with a checksum. A frame's record is appended before the frame is written to the agent and
// a commit's after. A writer killed in between leaves a last record that is short;
// its frame never reached the agent, and the next writer cuts it off. A record
// that is whole but wrong is damage, which is reported and never cut.
package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
)

const (
	headerSize = 32
	// MaxFrame bounds one frame.
	MaxFrame = 256 << 20
	// rewriteFrom is the size from which dropping records also frees their space.
	rewriteFrom = 256 << 10
)

type kind uint32

const (
	frameKind  kind = 1
	commitKind kind = 2
	voidKind   kind = 3
)

// ErrDamaged says that a record in the middle of the journal is not what was written.
var ErrDamaged = errors.New("the journal is damaged")

// Record is one frame in the journal.
type Record struct {
	Seq       uint64 // counts frames from 1, for the session's whole life
	OutOffset int64
	Frame     []byte
	Committed bool
}

// Journal is the writer's view. It is not safe for concurrent use.
type Journal struct {
	path string
	f    *os.File
	size int64
	last uint64 // the newest frame's Seq
}

// Read returns the frames after seq, oldest first. A missing file has none.
func Read(path string, after uint64) ([]Record, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	records, _, _, err := scan(f, after)
	return records, err
}

// Open opens the journal for its one writer, and makes it when it is missing. The
// next frame gets a Seq after floor and after every frame in the file.
func Open(path string, floor uint64) (*Journal, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	_, last, end, err := scan(f, ^uint64(0))
	if err == nil {
		err = f.Truncate(end)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Journal{path, f, end, max(last, floor)}, nil
}

// Last is the newest frame's Seq; 0 when there never was one.
func (j *Journal) Last() uint64 { return j.last }

// Append records a frame that is about to be written, and returns its Seq.
func (j *Journal) Append(frame []byte, outOffset int64) (uint64, error) {
	if len(frame) > MaxFrame {
		return 0, fmt.Errorf("a frame of %d bytes is more than the journal takes (%d)", len(frame), MaxFrame)
	}
	seq := j.last + 1
	if err := j.put(frameKind, seq, outOffset, frame); err != nil {
		return 0, err
	}
	j.last = seq
	return seq, nil
}

// Commit records that the frame was written as a whole.
func (j *Journal) Commit(seq uint64) error { return j.put(commitKind, seq, 0, nil) }

// Void records that no byte of the frame was written: it is as if never appended.
func (j *Journal) Void(seq uint64) error { return j.put(voidKind, seq, 0, nil) }

func (j *Journal) put(k kind, seq uint64, off int64, body []byte) error {
	record := encode(k, seq, off, body)
	if _, err := j.f.WriteAt(record, j.size); err != nil {
		// A part of it must not stay behind the next, shorter record.
		return fmt.Errorf("journal: %w", errors.Join(err, j.f.Truncate(j.size)))
	}
	j.size += int64(len(record))
	return nil
}

// Drop forgets the frames up to seq. Records that stay keep their Seq.
func (j *Journal) Drop(seq uint64) error {
	if j.size < rewriteFrom {
		return nil
	}
	keep, _, _, err := scan(j.f, seq)
	if err != nil {
		return err
	}
	tmp, err := os.OpenFile(j.path+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	fresh := Journal{path: j.path, f: tmp, last: j.last}
	for _, r := range keep {
		if err = fresh.put(frameKind, r.Seq, r.OutOffset, r.Frame); err == nil && r.Committed {
			err = fresh.Commit(r.Seq)
		}
		if err != nil {
			return errors.Join(err, tmp.Close())
		}
	}
	if err := os.Rename(tmp.Name(), j.path); err != nil {
		return errors.Join(err, tmp.Close())
	}
	err = j.f.Close()
	*j = fresh
	return err
}

// Close closes the file.
func (j *Journal) Close() error { return j.f.Close() }

// encode lays a record out: checksum of the rest of the header, length of the body,
// kind, seq, offset, checksum of the body, body.
func encode(k kind, seq uint64, off int64, body []byte) []byte {
	b := make([]byte, headerSize, headerSize+len(body))
	binary.LittleEndian.PutUint32(b[4:], uint32(len(body)))
	binary.LittleEndian.PutUint32(b[8:], uint32(k))
	binary.LittleEndian.PutUint64(b[12:], seq)
	binary.LittleEndian.PutUint64(b[20:], uint64(off))
	binary.LittleEndian.PutUint32(b[28:], checksum(body))
	binary.LittleEndian.PutUint32(b[0:], checksum(b[4:headerSize]))
	return append(b, body...)
}

func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// scan reads the whole file. It returns the frames after seq, the newest Seq of
// all, and where the last whole record ends.
func scan(f *os.File, after uint64) (records []Record, last uint64, end int64, err error) {
	st, err := f.Stat()
	if err != nil {
		return nil, 0, 0, err
	}
	size := st.Size()
	in := io.NewSectionReader(f, 0, size)
	header := make([]byte, headerSize)
	for size-end >= headerSize {
		if _, err := io.ReadFull(in, header); err != nil {
			return nil, 0, 0, fmt.Errorf("journal: %w", err)
		}
		// A writer that dies leaves a beginning, so a whole header is a right one: a
		// wrong length must not pass for a torn end.
		if checksum(header[4:]) != binary.LittleEndian.Uint32(header) {
			return nil, 0, 0, fmt.Errorf("%w: wrong header at %d", ErrDamaged, end)
		}
		length := int64(binary.LittleEndian.Uint32(header[4:]))
		if size-end-headerSize < length {
			break // cut short by the death of its writer
		}
		body := make([]byte, length)
		if _, err := io.ReadFull(in, body); err != nil {
			return nil, 0, 0, fmt.Errorf("journal: %w", err)
		}
		k := kind(binary.LittleEndian.Uint32(header[8:]))
		seq := binary.LittleEndian.Uint64(header[12:])
		off := int64(binary.LittleEndian.Uint64(header[20:]))
		if checksum(body) != binary.LittleEndian.Uint32(header[28:]) {
			return nil, 0, 0, fmt.Errorf("%w: wrong body at %d", ErrDamaged, end)
		}
		end += headerSize + length
		newest := len(records) - 1 // commits and voids are of the newest frame
		ofNewest := newest >= 0 && records[newest].Seq == seq
		switch {
		case k == frameKind:
			last = max(last, seq)
			if seq > after {
				records = append(records, Record{Seq: seq, OutOffset: off, Frame: body})
			}
		case k == commitKind && ofNewest:
			records[newest].Committed = true
		case k == voidKind && ofNewest:
			records = records[:newest]
		}
	}
	return records, last, end, nil
}
