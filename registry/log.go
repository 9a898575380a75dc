package registry

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// A frame is a header of frameHeader bytes and the payload:
//
//	0  two bytes of frameMark
//	2  type of the entry
//	3  zero
//	4  length of the payload, little endian
//	8  CRC-32C of bytes 2 to 7 and the payload
//
// The mark's first byte never occurs in UTF-8, so that no text in a payload can
// pass for a frame when a reader looks for the next one after damage.
const frameHeader = 12

var frameMark = [2]byte{0xf5, 'S'}

// MaxEntry is the largest payload of an entry, in bytes.
const MaxEntry = 16 << 20

// Entry is one record of a session's log, or a piece of it that is damaged.
type Entry struct {
	// Offset is where the entry begins in the log, End where the next one does.
	// Both are stable: a log only grows.
	Offset, End int64
	Type        byte
	Payload     []byte
	// Damage says why the bytes from Offset to End hold no entry; empty otherwise.
	// Type and Payload mean nothing then.
	Damage string
}

func appendFrame(b []byte, typ byte, payload []byte) []byte {
	b = append(b, frameMark[0], frameMark[1], typ, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	b = binary.LittleEndian.AppendUint32(b, frameSum(b[len(b)-6:], payload))
	return append(b, payload...)
}

func frameSum(head, payload []byte) uint32 {
	return crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, payload)
}

// errIncomplete says that the log ends within a frame: what a writer is about to
// complete, or never will.
var errIncomplete = errors.New("incomplete entry at the end of the log")

// frames reads a log from an offset on.
type frames struct {
	r    io.ReaderAt
	off  int64
	head [frameHeader]byte
}

// next returns the next entry, io.EOF at the end of the log, or errIncomplete. Off
// stays where it is on error, so that next may be called again when there is more.
func (f *frames) next() (Entry, error) {
	e, why, err := f.at(f.off)
	if err != nil && !errors.Is(err, errIncomplete) {
		return Entry{}, err
	}
	if why == "" && err == nil {
		f.off = e.End
		return e, nil
	}
	// No frame here. It is damage when there is a frame further on, or when the
	// bytes are all there and wrong; else the log just ends.
	end, found, scanErr := f.resync(f.off + 1)
	if scanErr != nil {
		return Entry{}, scanErr
	}
	if !found && err != nil {
		return Entry{}, err
	}
	if err != nil {
		why = "the entry's length is wrong"
	}
	e = Entry{Offset: f.off, End: end, Damage: why}
	f.off = end
	return e, nil
}

// at reads the frame at an offset; why is set when what is there is none.
func (f *frames) at(off int64) (e Entry, why string, err error) {
	n, err := f.r.ReadAt(f.head[:], off)
	if n < frameHeader {
		switch {
		case err != nil && err != io.EOF:
			return Entry{}, "", err
		case n == 0:
			return Entry{}, "", io.EOF
		case n >= 1 && f.head[0] != frameMark[0], n >= 2 && f.head[1] != frameMark[1]:
			return Entry{}, "no entry begins here", nil
		}
		return Entry{}, "", errIncomplete
	}
	size := int64(binary.LittleEndian.Uint32(f.head[4:]))
	if [2]byte(f.head[:2]) != frameMark || size > MaxEntry {
		return Entry{}, "no entry begins here", nil
	}
	// Memory for a size that may be made up is only taken when so much is there.
	var last [1]byte
	if n, err := f.r.ReadAt(last[:], off+frameHeader+size-1); n < 1 {
		if err == io.EOF {
			err = errIncomplete
		}
		return Entry{}, "", err
	}
	payload := make([]byte, size)
	if n, err := f.r.ReadAt(payload, off+frameHeader); int64(n) < size {
		return Entry{}, "", err
	}
	if frameSum(f.head[2:8], payload) != binary.LittleEndian.Uint32(f.head[8:]) {
		return Entry{}, "checksum does not match", nil
	}
	return Entry{Offset: off, End: off + frameHeader + size, Type: f.head[2], Payload: payload}, "", nil
}

// resync looks for the next frame that is whole, from an offset on. Without one it
// returns the end of the log.
func (f *frames) resync(from int64) (end int64, found bool, err error) {
	probe := frames{r: f.r}
	buf := make([]byte, 64<<10)
	for {
		n, err := f.r.ReadAt(buf, from)
		if err != nil && err != io.EOF {
			return 0, false, err
		}
		for i := 0; ; i++ {
			k := bytes.Index(buf[i:n], frameMark[:])
			if k < 0 {
				break
			}
			i += k
			_, why, err := probe.at(from + int64(i))
			if why == "" && err == nil {
				return from + int64(i), true, nil
			}
			if err != nil && err != io.EOF && !errors.Is(err, errIncomplete) {
				return 0, false, err
			}
		}
		if n < len(buf) {
			return from + int64(n), false, nil
		}
		from += int64(n) - 1 // the mark may lie across two buffers
	}
}

// tail finds where a log ends, from an offset at which an entry begins. torn is
// what follows the last entry when that is incomplete.
func tail(r io.ReaderAt, from, size int64) (end int64, torn []byte, err error) {
	f := frames{r: r, off: from}
	for {
		switch _, err := f.next(); {
		case err == nil:
			continue
		case err == io.EOF:
			return f.off, nil, nil
		case errors.Is(err, errIncomplete):
			torn := make([]byte, size-f.off)
			if n, err := r.ReadAt(torn, f.off); n < len(torn) {
				return 0, nil, fmt.Errorf("read log: %w", err)
			}
			return f.off, torn, nil
		default:
			return 0, nil, fmt.Errorf("read log: %w", err)
		}
	}
}
