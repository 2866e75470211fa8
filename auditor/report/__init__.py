"""A report: every deletion request between two positions of `kv.control`, none missing, each with its newest verdict.

One file of JSON lines like a bundle. Line 1 is a DSSE envelope that names the SHA-256 of all bytes below: `format`,
the `anchor` and the `segment`s of kv.control if the log has a checkpoint, a `control` line for *every* record of
kv.control (header line and signature; with its body if it is a request of the range or decides whose keys count; its
whole bytes if it can't be read), and the signed `verdict`s of kv.audit that are used. Nothing of it is taken on the
auditor's word but which verdict is the newest. It shows every tenant's requests: it is for whoever oversees them all.
"""
