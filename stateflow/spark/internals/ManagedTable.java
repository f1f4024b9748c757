package stateflow;

import java.util.Arrays;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.delta.catalog.DeltaTableV2;
import org.apache.spark.sql.delta.sources.DeltaDataSource;
import org.apache.spark.sql.execution.streaming.Source;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.Tuple2;
import scala.collection.immutable.Map;

/**
 * Delta's stream of a table whose commits go through its catalog. Delta's own reader can tell the source which table of a
 * catalog it is of, and Spark's has no place to say it: so the name comes as an option.
 */
public class ManagedTable extends DeltaDataSource {
    public static final String NAME = "stateflowcatalogtable";

    /** The table that a catalog calls so: catalog, schema and table, with slashes between. */
    public static DeltaTableV2 named(org.apache.spark.sql.SparkSession session, String name) throws Exception {
        org.apache.spark.sql.classic.SparkSession spark = (org.apache.spark.sql.classic.SparkSession) session;
        String[] parts = name.split("/");
        String[] schema = (String[]) Arrays.copyOfRange(parts, 1, parts.length - 1);
        // Spark looks for a catalog's settings in the session of the thread, and a thread of Python's has none.
        Option before = org.apache.spark.sql.classic.SparkSession.getActiveSession();
        org.apache.spark.sql.classic.SparkSession.setActiveSession(spark);
        try {
            TableCatalog catalog = (TableCatalog) spark.sessionState().catalogManager().catalog(parts[0]);
            return (DeltaTableV2) catalog.loadTable(identifier(schema, parts[parts.length - 1]));
        } finally {
            if (before.isDefined()) {
                org.apache.spark.sql.classic.SparkSession.setActiveSession(
                    (org.apache.spark.sql.classic.SparkSession) before.get());
            } else {
                org.apache.spark.sql.classic.SparkSession.clearActiveSession();
            }
        }
    }

    /** Spark's own compiler calls no static method of an interface. */
    private static Identifier identifier(String[] schema, String table) throws Exception {
        Class[] kinds = new Class[] {String[].class, String.class};
        return (Identifier) Identifier.class.getMethod("of", kinds).invoke(null, new Object[] {schema, table});
    }

    private void find(SQLContext context, Map parameters) {
        Option name = parameters.get(NAME);
        try {
            setCatalogTableOpt(named(context.sparkSession(), (String) name.get()).catalogTable());
        } catch (RuntimeException error) {
            throw error;
        } catch (Exception error) {
            throw new RuntimeException(error);
        }
    }

    public Tuple2 sourceSchema(SQLContext context, Option schema, String provider, Map parameters) {
        find(context, parameters);
        return super.sourceSchema(context, schema, provider, parameters);
    }

    public Source createSource(SQLContext context, String metadataPath, Option schema, String provider, Map parameters) {
        find(context, parameters);
        return super.createSource(context, metadataPath, schema, provider, parameters);
    }
}
