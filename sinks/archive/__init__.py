"""The archive sink: every slot writes objects of raw batches, and one commit to archive_segments decides them all."""
